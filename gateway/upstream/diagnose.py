"""Looks at one configured server from outside and says what is wrong with how it is configured.

Decides what is asked and in which order within a few seconds; `identify` and `certificates` look at
ports, `advice` and `readiness` word the findings. Opens its own short-lived connection, never runs
inference and changes nothing on the server. Called by the command line.
"""

import asyncio
import statistics
import uuid
from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.faults import Fault
from gateway.faults import Kind as FaultKind
from gateway.ports import Clock
from gateway.upstream import advice
from gateway.upstream.addresses import split_address
from gateway.upstream.advice import EXPECTED, Evidence
from gateway.upstream.certificates import TlsProblem, tls_problem
from gateway.upstream.describe import model_spec, queueing_of
from gateway.upstream.findings import (
    Control,
    Counters,
    Diagnosis,
    Finding,
    Target,
    error,
    one_line,
)
from gateway.upstream.identify import Kind, Seen, identify
from gateway.upstream.neighbours import first_triton, look_at, near, of_kind
from gateway.upstream.readiness import identity_findings, readiness_findings
from gateway.upstream.session import Session, open_session
from gateway.upstream.transport import FIRST_CANCEL_SAFE, version_tuple
from routing.fleet import ModelVersion
from routing.types import ModelSpec

DIAGNOSE_TIMEOUT_S = 3.0

# Shares of the whole time: the first call, then a look at what is there instead, then a proof.
_FIRST_SHARE, _LOOK_SHARE, _PROVE_SHARE = 0.4, 0.3, 0.25
_ROUND_TRIPS = 3
_CONFIGS_AT_ONCE = 4
# No call got through to an application.
_NO_CALL = frozenset({FaultKind.UNREACHABLE, FaultKind.DEADLINE, FaultKind.BROKEN})


async def diagnose(
    target: Target,
    *,
    clock: Clock,
    timeout_s: float = DIAGNOSE_TIMEOUT_S,
    ask_control: bool = True,
) -> Diagnosis:
    """Probe one server within `timeout_s` seconds; every problem is a finding, none is raised.

    Asks ServerMetadata, ServerLive (three times), ServerReady, ModelStatistics, ModelConfig and
    RepositoryIndex, and looks at the http and metrics addresses with one or two GETs.

    The model control mode shows in no answer of Triton. It is learnt by asking to *unload a model
    with a random name that cannot exist*: in the modes none and poll Triton refuses any unload, in
    mode explicit unloading what is unknown succeeds and does nothing (seen on 2.51: the index
    stays as it was). Loading an unknown name would make the server read its repository. Without
    `ask_control` it is not asked: a running gateway touches nothing on its own account.

    Which calls are restricted is found out by making them, so a server that restricts nothing but
    inference looks unrestricted.
    """
    async with open_session(target, clock=clock, timeout_s=timeout_s) as session:
        return await _Probe(session, ask_control=ask_control).run()


class _Probe:
    """The state of one diagnosis."""

    def __init__(self, session: Session, *, ask_control: bool) -> None:
        self._session = session
        self._ask_control = ask_control
        self._target = session.target
        self._findings: list[Finding] = []
        self._models: Counters | None = None
        self._fault: Fault | None = None

    async def run(self) -> Diagnosis:
        seen, said = await asyncio.gather(self._look_at_others(), self._identify())
        reachable = said is not None or bool(self._session.restricted)
        await self._judge_addresses(seen, reachable=reachable)
        if not reachable:
            return Diagnosis(findings=tuple(self._findings))
        said = said or pb.ServerMetadataResponse()
        return await self._inspect(said)

    async def _inspect(self, said: pb.ServerMetadataResponse) -> Diagnosis:
        session = self._session
        self._findings += identity_findings(said, self._target.expect)
        round_trip_ms = await self._round_trip()
        await self._read_models()
        control = await self._control_mode() if self._ask_control else Control.UNKNOWN
        configs = await self._read_configs()
        await self._judge_readiness()
        self._findings += advice.restricted_findings(self._target, session.restricted)
        return Diagnosis(
            reachable=True,
            triton_version=one_line(said.version),
            server_id=said.name,
            cancel_safe=version_tuple(said.version) >= FIRST_CANCEL_SAFE,
            control_mode=control,
            models_ready=None if self._models is None else len({name for name, _ in self._models}),
            round_trip_ms=round_trip_ms,
            missing_keys=session.missing_keys,
            counters=self._models or {},
            signatures={key: _signature(*key, config) for key, config in configs.items()},
            queues={key: queueing_of(config) for key, config in configs.items()},
            findings=tuple(self._findings),
        )

    # --- the addresses

    async def _look_at_others(self) -> dict[str, Seen]:
        addresses = {"http": self._target.http, "metrics": self._target.metrics}
        given = {role: address for role, address in addresses.items() if address}
        seen = await look_at(given.values(), timeout_s=self._session.share_s(_FIRST_SHARE))
        return {role: seen[address] for role, address in given.items()}

    async def _identify(self) -> pb.ServerMetadataResponse | None:
        try:
            return await self._session.metadata(share=_FIRST_SHARE)
        except Fault as fault:
            if not self._session.restricted:
                self._fault = fault
            return None

    async def _judge_addresses(self, seen: dict[str, Seen], *, reachable: bool) -> None:
        """Look closer where an address is wrong, and tell what is there and what is right."""
        wrong = {role for role, what in seen.items() if what.kind is not EXPECTED[role]}
        if not reachable:
            wrong.add("grpc")
        better: Mapping[str, str] = {}
        if wrong:
            looked, better = await asyncio.gather(self._look_at_grpc(), self._search(wrong))
            seen |= {"grpc": looked} if looked else {}
        evidence = Evidence(self._target, self._fault, seen, better, await self._tls_problem(seen))
        self._findings += advice.address_findings(evidence)

    async def _look_at_grpc(self) -> Seen | None:
        """Look what is behind the gRPC address, where no call got through to an application."""
        fault = self._fault
        if fault is None or fault.kind not in _NO_CALL or "Method not found" in str(fault.detail):
            return None
        host, port = split_address(self._target.grpc)
        return await identify(host, port, timeout_s=self._session.share_s(_LOOK_SHARE))

    async def _tls_problem(self, seen: Mapping[str, Seen]) -> TlsProblem | None:
        tls, there = self._target.tls, seen.get("grpc")
        if tls is None or there is None or there.kind is not Kind.TLS:
            return None
        host, port = split_address(self._target.grpc)
        return await tls_problem(host, port, tls, timeout_s=self._session.share_s(_PROVE_SHARE))

    async def _search(self, wrong: set[str]) -> dict[str, str]:
        """Look for the right addresses: those meant for something else, then the neighbours."""
        session, target = self._session, self._target
        given = [address for address in (target.http, target.metrics) if address]
        found = await look_at([*given, *near(target.grpc)], timeout_s=session.share_s(_LOOK_SHARE))
        better = {
            role: addresses[0]
            for role, kind in EXPECTED.items()
            if role in wrong and (addresses := of_kind(found, kind))
        }
        if "grpc" in wrong:
            likely = of_kind(found, Kind.HTTP2 if target.tls is None else Kind.TLS)
            limit_s = session.share_s(_PROVE_SHARE)
            grpc = await first_triton(likely, target, clock=session.clock, timeout_s=limit_s)
            better |= {"grpc": grpc} if grpc else {}
        return better

    # --- the server itself

    async def _round_trip(self) -> float | None:
        taken_s = []
        for _ in range(_ROUND_TRIPS):
            began_s = self._session.clock()
            reply = await self._session.ask(
                "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse
            )
            if reply is None:
                return None
            taken_s.append(self._session.clock() - began_s)
            if not reply.live:
                fix = "look into its log"
                self._findings.append(error("not-live", "the server says it is not live", fix))
                return None
        return statistics.median(taken_s) * 1000

    async def _read_models(self) -> None:
        try:
            self._models = await self._session.counters()
        except Fault as fault:
            if fault.kind is not FaultKind.FORBIDDEN:
                self._findings.append(advice.no_statistics(fault))

    async def _control_mode(self) -> Control:
        """Learn the control mode, first as a stranger who has no key; see `diagnose`."""
        mode = await self._unload_nothing(stranger=True)
        if mode is Control.EXPLICIT:
            self._findings.append(advice.control_exposed(self._target.grpc))
        if mode is Control.UNKNOWN and self._target.metadata:
            return await self._unload_nothing(stranger=False)
        return mode

    async def _unload_nothing(self, *, stranger: bool) -> Control:
        request = pb.RepositoryModelUnloadRequest(model_name=f"no-such-model-{uuid.uuid4().hex}")
        reply = pb.RepositoryModelUnloadResponse
        try:
            await self._session.call("RepositoryModelUnload", request, reply, stranger=stranger)
        except Fault as fault:
            refused = "explicit model load / unload" in str(fault.detail)
            return Control.NONE_OR_POLL if refused else Control.UNKNOWN
        return Control.EXPLICIT

    async def _read_configs(self) -> dict[tuple[str, str], ModelConfig]:
        limit = asyncio.Semaphore(_CONFIGS_AT_ONCE)
        keys = list(self._models or ())

        async def one(name: str, version: str) -> ModelConfig | None:
            async with limit:
                request = pb.ModelConfigRequest(name=name, version=version)
                reply = await self._session.ask("ModelConfig", request, pb.ModelConfigResponse)
            return reply.config if reply else None

        found = await asyncio.gather(*(one(*key) for key in keys))
        return {key: config for key, config in zip(keys, found, strict=True) if config is not None}

    async def _judge_readiness(self) -> None:
        ready = await self._session.ask(
            "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse
        )
        index = await self._session.ask(
            "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse
        )
        self._findings += readiness_findings(
            ready=ready is None or ready.ready,
            rows=index.models if index else (),
            empty=self._models == {},
        )


def _signature(name: str, version: str, config: ModelConfig) -> ModelSpec:
    key = ModelVersion(name, int(version) if version.isdigit() else 0)
    return model_spec(key, config)
