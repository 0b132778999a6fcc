"""Finds the three ports of a Triton when any one of them is known.

Trusts an HTTP port that is near only when it does not name another server. Called by the command
line for a first configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.ports import Clock
from gateway.upstream.addresses import join_address, split_address
from gateway.upstream.diagnose import DIAGNOSE_TIMEOUT_S, diagnose
from gateway.upstream.findings import Diagnosis, Target
from gateway.upstream.identify import Kind, Seen
from gateway.upstream.neighbours import first_triton, look_at, near, of_kind
from gateway.upstream.tls import TlsOptions

# Where the gRPC port is likely to be, seen from the given one (8000 HTTP, 8001 gRPC, 8002 metrics).
_FROM_HTTP = (1, 2, -1, -2)
_FROM_METRICS = (-1, -2, 1, 2)
_LOOK_SHARE, _PROVE_SHARE = 0.3, 0.3


@dataclass(frozen=True, slots=True)
class Discovery:
    """A server's addresses, as far as they were found, and how it is.

    Without a Triton the target holds the given address as it is, and the diagnosis says what is
    there instead.
    """

    target: Target
    diagnosis: Diagnosis


async def discover(
    address: str, *, clock: Clock, timeout_s: float = DIAGNOSE_TIMEOUT_S
) -> Discovery:
    """Look for the Triton one of whose ports is `address`; takes at most twice `timeout_s`."""
    ports = await look_at([address, *near(address)], timeout_s=timeout_s * _LOOK_SHARE)
    target = await _grpc(address, ports, clock, timeout_s * _PROVE_SHARE)
    diagnosis = await diagnose(target, clock=clock, timeout_s=timeout_s)
    if not diagnosis.reachable:
        return Discovery(target, diagnosis)
    return Discovery(_with_others(target, address, ports, diagnosis.server_id), diagnosis)


async def _grpc(address: str, ports: Mapping[str, Seen], clock: Clock, timeout_s: float) -> Target:
    kind = ports[address].kind
    if kind is Kind.TLS:
        return Target(address, tls=TlsOptions())
    # Near any other kind of port there may be a Triton that is not meant.
    steps = {Kind.TRITON_HTTP: _FROM_HTTP, Kind.TRITON_METRICS: _FROM_METRICS}.get(kind, ())
    likely = near(address, steps)
    plain = Target(address)
    for wanted, like in (
        (Kind.HTTP2, plain),
        (Kind.TLS, replace(plain, tls=TlsOptions())),
    ):
        candidates = [at for at in likely if ports[at].kind is wanted]
        found = await first_triton(candidates, like, clock=clock, timeout_s=timeout_s)
        if found is not None:
            return replace(like, grpc=found)
    return plain


def _with_others(target: Target, given: str, ports: Mapping[str, Seen], server_id: str) -> Target:
    """Add the http and metrics addresses that belong to the server."""
    host, port = split_address(target.grpc)
    http = of_kind(_ordered(ports, given, join_address(host, port - 1)), Kind.TRITON_HTTP)
    # An id of "" is one that is not told, for want of a key.
    same = [at for at in http if server_id in ("", ports[at].server_id) or not ports[at].server_id]
    metrics = of_kind(_ordered(ports, given, join_address(host, port + 1)), Kind.TRITON_METRICS)
    return replace(target, http=same[0] if same else None, metrics=metrics[0] if metrics else None)


def _ordered(ports: Mapping[str, Seen], *first: str) -> dict[str, Seen]:
    """Put some addresses first: the one that was given, and where Triton puts it by default."""
    order = [*(at for at in first if at in ports), *ports]
    return {at: ports[at] for at in order}
