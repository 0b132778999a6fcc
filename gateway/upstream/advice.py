"""From what was seen at a server's addresses to what the operator should change.

Pure: evidence in, findings out, each in words that name the key to write. Called by `diagnose`,
which gathers the evidence; knows no sockets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.faults import Fault
from gateway.faults import Kind as FaultKind
from gateway.upstream.certificates import TlsProblem, Trouble
from gateway.upstream.findings import Finding, Severity, Target, error, one_line, warning
from gateway.upstream.identify import Kind, Seen

_USUAL = {"grpc": 8001, "http": 8000, "metrics": 8002}
_NEEDED = frozenset({"ServerMetadata", "ModelStatistics"})
_ROLE_OF = {Kind.TRITON_HTTP: "http", Kind.TRITON_METRICS: "metrics", Kind.HTTP2: "grpc"}
EXPECTED = {"http": Kind.TRITON_HTTP, "metrics": Kind.TRITON_METRICS}
_NOTHING = frozenset({Kind.REFUSED, Kind.TIMEOUT, Kind.UNREACHABLE, Kind.SILENT, Kind.CLOSES})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen at the addresses of a target.

    `seen` is by the target's own key (grpc, http, metrics); `better` the address found to be right
    for a key. `fault` is how the gRPC call failed, None when it succeeded.
    """

    target: Target
    fault: Fault | None = None
    seen: Mapping[str, Seen] = field(default_factory=dict)
    better: Mapping[str, str] = field(default_factory=dict)
    tls: TlsProblem | None = None


def address_findings(evidence: Evidence) -> list[Finding]:
    """Return what is wrong with the target's addresses."""
    swapped = _swapped(evidence)
    found = [swapped[0]] if swapped else []
    told = swapped[1] if swapped else ()
    if evidence.fault is not None and "grpc" not in told:
        found.append(_grpc(evidence, evidence.fault))
    found += [
        finding
        for role in ("http", "metrics")
        if role in evidence.seen and role not in told
        for finding in _other(evidence, role)
    ]
    return found


def _swapped(evidence: Evidence) -> tuple[Finding, tuple[str, str]] | None:
    """Find two keys each of which holds what belongs to the other."""
    roles = {role: _ROLE_OF.get(seen.kind) for role, seen in evidence.seen.items()}
    for one, other in (("grpc", "http"), ("grpc", "metrics"), ("http", "metrics")):
        if roles.get(one) == other and roles.get(other) == one:
            first, second = _address(evidence, one), _address(evidence, other)
            finding = error(
                "ports-swapped",
                f"the addresses of `{one}` and `{other}` are swapped: {first} is"
                f" {evidence.seen[one].kind.value} and {second} {evidence.seen[other].kind.value}",
                f"write `{one}: {second}` and `{other}: {first}`",
            )
            return finding, (one, other)
    return None


def _grpc(evidence: Evidence, fault: Fault) -> Finding:
    where, seen = evidence.target.grpc, evidence.seen.get("grpc")
    if fault.kind is FaultKind.DRAINING:
        return error(
            "stopping",
            f"the server at {where} is going down: {one_line(fault.message)}",
            "start it again, or take it out of the configuration",
        )
    if seen is None:
        return _answered(where, fault)
    if seen.kind in (Kind.TRITON_HTTP, Kind.TRITON_METRICS):
        role = _ROLE_OF[seen.kind]
        return error(
            f"grpc-is-{role}-port", f"grpc {where} is {seen.kind.value}", _write(evidence, "grpc")
        )
    if seen.kind is Kind.TLS:
        return _tls(evidence)
    if seen.kind is Kind.HTTP2 and evidence.target.tls is not None:
        return error(
            "tls-to-plaintext",
            f"grpc {where} speaks plain text, and the configuration asks for TLS",
            "remove `tls`, or start Triton with --grpc-use-ssl=1",
        )
    if seen.kind is Kind.HTTP2:
        return _mute(where, "gRPC calls", None)
    return _no_triton(evidence, seen)


def _answered(where: str, fault: Fault) -> Finding:
    """Judge an answer that came over a working gRPC connection."""
    detail = one_line(fault.detail or fault.message)
    if "http2 header with status" in detail:
        return error(
            "not-grpc",
            f"{where} speaks HTTP/2, but not gRPC: {detail}",
            "write the address of Triton's gRPC port; a proxy before it must let gRPC pass",
        )
    if detail.startswith(("UNAUTHENTICATED", "PERMISSION_DENIED")):
        return error(
            "credentials",
            f"{where} wants credentials: {detail}",
            "add them as `metadata: {authorization: {env: NAME}}`",
        )
    if "Method not found" in detail or fault.kind is FaultKind.UNSUPPORTED:
        return error(
            "other-grpc-service",
            f"{where} is a gRPC service, but no Triton: {detail}",
            "write the address of Triton's gRPC port (8001 unless Triton was told otherwise)",
        )
    return error(
        "grpc-error",
        f"{where} answers with an error: {detail}",
        "look into the server's log, and at proxies between the gateway and the server",
    )


def _no_triton(evidence: Evidence, seen: Seen) -> Finding:
    where = evidence.target.grpc
    if seen.kind is Kind.REFUSED:
        return error(
            "connection-refused",
            f"nothing listens at {where}: the connection is refused",
            _write(evidence, "grpc", "start the server, or correct host and port"),
        )
    if seen.kind is Kind.TIMEOUT:
        return error(
            "connect-timeout",
            f"no answer to the attempt to connect to {where}",
            _write(evidence, "grpc", "correct host and port, or open the port in the firewall"),
        )
    if seen.kind is Kind.SILENT:
        return _mute(where, "anything", evidence.better.get("grpc"))
    if seen.kind is Kind.UNRESOLVED:
        host = where.rpartition(":")[0]
        return error(
            "unknown-host",
            f"the host name {host} cannot be resolved: {seen.detail}",
            "correct the name, or use the IP address",
        )
    if seen.kind is Kind.CLOSES:
        return error(
            "closes-connections",
            f"{where} closes every connection at once",
            _write(evidence, "grpc", "check what the port is forwarded to; Triton may be stopping"),
        )
    return error(
        "not-triton",
        f"{where} is {seen.kind.value}" + (f" ({seen.detail})" if seen.detail else ""),
        _write(evidence, "grpc"),
    )


def _mute(where: str, what: str, better: str | None) -> Finding:
    fix = "see whether the server hangs, or the port is forwarded to nowhere"
    return error(
        "no-answer",
        f"{where} accepts connections and does not answer {what} in time",
        f"write `grpc: {better}`" if better else fix,
    )


def _tls(evidence: Evidence) -> Finding:
    where, problem = evidence.target.grpc, evidence.tls
    if evidence.target.tls is None:
        return error(
            "plaintext-to-tls",
            f"grpc {where} speaks TLS, and the configuration does not",
            "add `tls: {}`, or `tls: {ca_file: FILE}` for an authority of your own",
        )
    if problem is None:
        detail = one_line((evidence.fault and evidence.fault.detail) or "no reason given")
        return error(
            "tls-failed",
            f"the TLS connection to {where} fails: {detail}",
            "compare the server's TLS settings with `tls`",
        )
    return _tls_trouble(where, problem, shown=evidence.target.tls.cert_pem is not None)


def _tls_trouble(where: str, problem: TlsProblem, *, shown: bool) -> Finding:
    detail, certificate = problem.detail, f"the certificate of {where}"
    if problem.trouble is Trouble.UNTRUSTED:
        return error(
            "certificate-untrusted",
            f"{certificate} is not trusted: {detail}",
            "name the authority that signed it: `tls: {ca_file: FILE}`",
        )
    if problem.trouble is Trouble.WRONG_NAME:
        name = problem.names[0] if problem.names else "NAME"
        return error(
            "certificate-name",
            f"{certificate} is for another name: {detail};"
            f" it is for {', '.join(problem.names) or 'no name at all'}",
            f"if that is the right server, add `server_name: {name}` to `tls`",
        )
    if problem.trouble is Trouble.EXPIRED:
        fix = "renew it on the server; if it is good, set the clock of this machine"
        return error("certificate-expired", f"{certificate} is not valid now: {detail}", fix)
    if problem.trouble is Trouble.WANTS_CERTIFICATE:
        told = "does not accept the gateway's certificate" if shown else "wants a certificate"
        return error(
            "client-certificate",
            f"{where} {told} ({detail})",
            "set `cert_file` and `key_file` in `tls` to what the server's authority has signed",
        )
    if problem.trouble is Trouble.BAD_FILES:
        fix = "let `tls.ca_file` name a file of certificates in PEM format"
        return error("tls-files", f"the files of `tls` cannot be used: {detail}", fix)
    return error(
        "tls-not-grpc",
        f"{where} speaks TLS but not gRPC: it offers no HTTP/2 ({detail})",
        "write the address of the gRPC port; if a proxy ends TLS there, switch HTTP/2 on",
    )


def _other(evidence: Evidence, role: str) -> Iterable[Finding]:
    """Judge the http or metrics address; inference works without it."""
    seen, where = evidence.seen[role], _address(evidence, role)
    if seen.kind is EXPECTED[role]:
        return
    fix = _write(evidence, role, f"correct the address, or remove `{role}`")
    if seen.kind in _ROLE_OF:
        code = f"{role}-is-{_ROLE_OF[seen.kind]}-port"
        yield error(code, f"{role} {where} is {seen.kind.value}", fix)
    elif seen.kind in _NOTHING:
        yield warning(f"{role}-unreachable", f"{role} {where} is {seen.kind.value}", fix)
    elif seen.kind is Kind.UNRESOLVED:
        yield warning(f"{role}-unreachable", f"{role} {where} has {seen.kind.value}", fix)
    else:
        yield error(f"{role}-is-other", f"{role} {where} is {seen.kind.value}", fix)


def restricted_findings(target: Target, calls: Mapping[str, Iterable[str]]) -> Iterable[Finding]:
    """Judge calls the server restricts: metadata name it wants -> the calls that want it."""
    sent = {name for name, _ in target.metadata}
    for header, refused in calls.items():
        names = sorted(refused)
        severity = Severity.ERROR if _NEEDED.intersection(names) else Severity.WARNING
        message = f"the server restricts {', '.join(names)} and expects a key as `{header}`"
        if header in sent:
            message += "; the one sent is wrong"
            fix = "compare the secret with what Triton's --grpc-restricted-protocol says"
        else:
            fix = (
                f"add `metadata: {{{header}: {{env: NAME}}}}` and put the key of Triton's"
                " --grpc-restricted-protocol into NAME"
            )
        yield Finding(severity, "restricted", message, fix)


def _write(evidence: Evidence, role: str, otherwise: str | None = None) -> str:
    better = evidence.better.get(role)
    if better:
        return f"write `{role}: {better}`"
    usual = f"write the address of Triton's {role} port ({_USUAL[role]} unless it was changed)"
    return otherwise or usual


def _address(evidence: Evidence, role: str) -> str:
    return str(getattr(evidence.target, role))


def no_statistics(fault: Fault) -> Finding:
    """Judge a server that does not answer ModelStatistics, which lists what is ready."""
    return error(
        "no-statistics",
        f"the server does not tell which models are ready: {one_line(fault.detail or str(fault))}",
        "see whether this is a Triton (the gateway needs its ModelStatistics) and not overloaded",
    )


def control_exposed(where: str) -> Finding:
    """Judge a server whose models a stranger can load and unload."""
    return warning(
        "control-exposed",
        f"whoever reaches {where} can load and unload models without a key",
        "start Triton with --grpc-restricted-protocol=model-repository:KEY=SECRET (and"
        " --http-restricted-api likewise), or keep its ports in a private network",
    )
