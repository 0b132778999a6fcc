"""Every way to misconfigure a server is told apart, and named with what to change."""

import asyncio
import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from gateway.upstream.diagnose import diagnose
from gateway.upstream.findings import Control, Diagnosis, Finding, Severity, Target
from gateway.upstream.tls import TlsOptions
from tests.certificates import Authority, Pair
from tests.fakes import ports
from tests.fakes.model import FakeModel, model_config
from tests.fakes.proxy import HOST
from tests.fakes.triton import FakeTriton

KEY = "triton-grpc-protocol-admin"
RESTRICTED = (
    grpc.StatusCode.UNAVAILABLE,
    f"This protocol is restricted, expecting header '{KEY}'",
)
NOT_EXPLICIT = (
    grpc.StatusCode.UNAVAILABLE,
    "explicit model load / unload is not allowed if polling is enabled",
)
LIMIT_S = 3.0


class ControlledTriton(FakeTriton):
    """A scripted Triton in explicit mode, or (through `errors`) in another one."""

    unload_key: str | None = None
    """Unloading wants this value as metadata `KEY`."""

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        await self._enter("RepositoryModelUnload", context)
        assert request.model_name not in self.models
        sent = dict(context.invocation_metadata()).get(KEY)
        if sent != self.unload_key:
            await context.abort(*RESTRICTED)
        return service_pb2.RepositoryModelUnloadResponse()


def triton(**options: Any) -> ControlledTriton:
    models = [FakeModel(model_config("one")), FakeModel(model_config("two"))]
    return ControlledTriton(*models, **options)


@pytest.fixture
async def fake() -> AsyncIterator[ControlledTriton]:
    async with triton() as server:
        server.errors["RepositoryModelUnload"] = NOT_EXPLICIT
        yield server


async def look(grpc: str, *, timeout_s: float = LIMIT_S, **options: Any) -> Diagnosis:
    """Diagnose, which must end in time and raise nothing."""
    began_s = time.monotonic()
    found = await diagnose(Target(grpc, **options), clock=time.monotonic, timeout_s=timeout_s)
    assert time.monotonic() - began_s < timeout_s + 2.0  # the machine may be busy
    return found


def only(diagnosis: Diagnosis) -> Finding:
    [finding] = diagnosis.findings
    assert finding.fix
    return finding


async def code_of(grpc: str, **options: Any) -> str:
    return only(await look(grpc, **options)).code


def other(role: str, address: str) -> dict[str, Any]:
    return {role: address}


def refused_address() -> str:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return f"{HOST}:{sock.getsockname()[1]}"


# --- a server that is there


async def test_good_server_is_described_without_findings(fake: ControlledTriton) -> None:
    found = await look(fake.address, expect="fake")
    assert found.findings == ()
    assert found.reachable
    assert (found.server_id, found.triton_version, found.cancel_safe) == ("fake", "2.58.0", True)
    assert found.models_ready == 2
    assert found.control_mode is Control.NONE_OR_POLL
    assert found.round_trip_ms is not None
    assert 0 < found.round_trip_ms < 1000
    assert set(found.signatures) == {("one", "1"), ("two", "1")}


async def test_probe_runs_no_inference_and_leaves_no_connection(fake: ControlledTriton) -> None:
    await look(fake.address)
    assert fake.infer_started == 0
    assert fake.calls["ServerLive"] == 3
    async with asyncio.timeout(5):
        while fake.proxy.open_connections:
            await asyncio.sleep(0.01)


async def test_old_version_is_told_about_as_information() -> None:
    async with triton(version="2.51.0") as fake:
        fake.errors["RepositoryModelUnload"] = NOT_EXPLICIT
        found = await look(fake.address)
    assert (only(found).code, only(found).severity) == ("detached-calls", Severity.INFO)
    assert not found.cancel_safe


async def test_another_server_than_expected_is_an_error(fake: ControlledTriton) -> None:
    finding = only(await look(fake.address, expect="mine"))
    assert finding.code == "wrong-server"
    assert finding.severity is Severity.ERROR
    assert "'fake'" in finding.message
    assert "'mine'" in finding.message


async def test_failed_model_is_named_with_its_reason(fake: ControlledTriton) -> None:
    fake.ready = False
    fake.models["two"].states["1"] = "UNAVAILABLE"
    fake.models["two"].reasons["1"] = "Internal: weights are missing\n\nAt:\n  model.py(1)"
    finding = only(await look(fake.address))
    assert finding.code == "model-failed"
    assert finding.message == (
        "model 'two' version 1 could not be loaded: Internal: weights are missing"
    )


async def test_many_failed_models_are_summed_up(fake: ControlledTriton) -> None:
    for number in range(8):
        fake.models[f"bad{number}"] = FakeModel(
            model_config(f"bad{number}"), {"1": "UNAVAILABLE"}, {"1": "no"}
        )
    findings = (await look(fake.address)).findings
    assert [finding.code for finding in findings] == ["model-failed"] * 6
    assert findings[-1].message.endswith("bad5, bad6, bad7")


@pytest.mark.parametrize(
    ("states", "ready", "code"),
    [
        ("LOADING", False, "loading"),
        ("READY", False, "not-ready"),
        ("UNAVAILABLE", True, "no-models"),
    ],
)
async def test_server_without_ready_models_is_a_warning(
    fake: ControlledTriton, states: str, ready: bool, code: str
) -> None:
    fake.ready = ready
    for model in fake.models.values():
        model.states["1"] = states
        model.reasons["1"] = "unloaded" if states == "UNAVAILABLE" else ""
    finding = only(await look(fake.address))
    assert (finding.code, finding.severity) == (code, Severity.WARNING)


async def test_dead_server_is_an_error(fake: ControlledTriton) -> None:
    fake.live = False
    assert await code_of(fake.address) == "not-live"


async def test_service_without_statistics_cannot_be_used(fake: ControlledTriton) -> None:
    fake.errors["ModelStatistics"] = (grpc.StatusCode.UNIMPLEMENTED, "")
    assert await code_of(fake.address) == "no-statistics"


async def test_server_going_down_is_told_apart_from_a_missing_one(fake: ControlledTriton) -> None:
    fake.errors["ServerMetadata"] = (grpc.StatusCode.UNAVAILABLE, "Server exiting")
    assert await code_of(fake.address) == "stopping"


# --- model control and restricted calls


async def test_control_open_to_everybody_is_a_warning() -> None:
    async with triton() as fake:
        found = await look(fake.address)
    assert found.control_mode is Control.EXPLICIT
    assert (only(found).code, only(found).severity) == ("control-exposed", Severity.WARNING)


async def test_control_behind_a_key_is_not_exposed() -> None:
    async with triton() as fake:
        fake.unload_key = "secret"
        found = await look(fake.address, metadata=((KEY, "secret"),))
        stranger = await look(fake.address)
    assert (found.control_mode, found.findings) == (Control.EXPLICIT, ())
    assert (stranger.control_mode, stranger.findings) == (Control.UNKNOWN, ())


@pytest.mark.parametrize(
    ("method", "severity"),
    [
        ("ServerMetadata", Severity.ERROR),
        ("ModelStatistics", Severity.ERROR),
        ("RepositoryIndex", Severity.WARNING),
    ],
)
async def test_missing_key_is_named(
    fake: ControlledTriton, method: str, severity: Severity
) -> None:
    fake.errors[method] = RESTRICTED
    found = await look(fake.address)
    assert found.reachable
    assert found.missing_keys == (KEY,)
    assert (only(found).code, only(found).severity) == ("restricted", severity)
    assert method in only(found).message
    assert f"{{{KEY}: {{env: NAME}}}}" in only(found).fix


async def test_wrong_key_is_not_called_missing_and_never_shown(fake: ControlledTriton) -> None:
    fake.errors["ServerMetadata"] = RESTRICTED
    found = await look(fake.address, metadata=((KEY, "guess-work"),))
    assert found.missing_keys == ()
    assert "the one sent is wrong" in only(found).message
    assert "guess-work" not in repr(found)


async def test_proxy_that_wants_credentials_is_named(fake: ControlledTriton) -> None:
    fake.errors["ServerMetadata"] = (grpc.StatusCode.UNAUTHENTICATED, "who are you?")
    assert await code_of(fake.address) == "credentials"


# --- wrong ports


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ports.triton_http(), "grpc-is-http-port"),
        (ports.triton_metrics(), "grpc-is-metrics-port"),
        (ports.web_page(), "not-triton"),
        (ports.ssh, "not-triton"),
        (ports.http2_without_grpc, "not-grpc"),
        (ports.closing, "closes-connections"),
        (ports.silent, "no-answer"),
    ],
)
async def test_what_listens_instead_is_named(answer: ports.Answer, code: str) -> None:
    async with ports.listening(answer) as address:
        found = await look(address, timeout_s=1.0)
    assert not found.reachable
    assert (only(found).code, only(found).severity) == (code, Severity.ERROR)
    assert address in only(found).message


async def test_port_that_never_accepts_is_no_answer() -> None:
    with socket.socket() as hole:
        hole.bind((HOST, 0))
        hole.listen(1)
        assert await code_of(f"{HOST}:{hole.getsockname()[1]}", timeout_s=1.0) == "no-answer"


async def test_frozen_server_is_no_answer(fake: ControlledTriton) -> None:
    fake.silent.add("ServerMetadata")
    assert await code_of(fake.address, timeout_s=1.0) == "no-answer"


async def test_nothing_listening_is_a_refused_connection() -> None:
    assert await code_of(refused_address()) == "connection-refused"


async def test_unknown_host_is_named() -> None:
    finding = only(await look("no-such-host.invalid:8001"))
    assert finding.code == "unknown-host"
    assert "no-such-host.invalid" in finding.message


async def test_another_grpc_service_is_no_triton() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        assert await code_of(f"{HOST}:{port}") == "other-grpc-service"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("step", [-2, -1, 1, 2])
async def test_right_port_nearby_is_suggested(step: int) -> None:
    given = ports.free_ports(5) + 2
    fake = triton()
    fake.proxy.port = given + step
    async with fake, ports.listening(ports.triton_http(), given) as address:
        finding = only(await look(address))
    assert finding.code == "grpc-is-http-port"
    assert finding.fix == f"write `grpc: {fake.address}`"


async def test_right_port_is_suggested_when_nothing_listens() -> None:
    given = ports.free_ports(3)
    fake = triton()
    fake.proxy.port = given + 1
    async with fake:
        finding = only(await look(f"{HOST}:{given}"))
    assert finding.code == "connection-refused"
    assert finding.fix == f"write `grpc: {fake.address}`"


@pytest.mark.parametrize("role", ["http", "metrics"])
async def test_swapped_addresses_are_one_finding(fake: ControlledTriton, role: str) -> None:
    answer = ports.triton_http() if role == "http" else ports.triton_metrics()
    async with ports.listening(answer) as address:
        finding = only(await look(address, **other(role, fake.address)))
    assert finding.code == "ports-swapped"
    assert finding.fix == f"write `grpc: {fake.address}` and `{role}: {address}`"


async def test_http_and_metrics_swapped_are_one_finding(fake: ControlledTriton) -> None:
    async with (
        ports.listening(ports.triton_http()) as http,
        ports.listening(ports.triton_metrics()) as metrics,
    ):
        good = await look(fake.address, http=http, metrics=metrics)
        finding = only(await look(fake.address, http=metrics, metrics=http))
    assert good.findings == ()
    assert finding.code == "ports-swapped"
    assert finding.fix == f"write `http: {http}` and `metrics: {metrics}`"


@pytest.mark.parametrize(
    ("role", "answer", "code"),
    [
        ("http", ports.triton_metrics(), "http-is-metrics-port"),
        ("metrics", ports.triton_http(), "metrics-is-http-port"),
        ("http", ports.web_page(), "http-is-other"),
        ("metrics", ports.web_page("# HELP go_info Go\n"), "metrics-is-other"),
        ("metrics", ports.closing, "metrics-unreachable"),
    ],
)
async def test_wrong_second_address_is_told_while_the_server_is_usable(
    fake: ControlledTriton, role: str, answer: ports.Answer, code: str
) -> None:
    async with ports.listening(answer) as address:
        found = await look(fake.address, **other(role, address))
    assert found.reachable
    assert only(found).code == code


@pytest.mark.parametrize("role", ["http", "metrics"])
async def test_grpc_port_of_another_server_as_second_address(
    fake: ControlledTriton, role: str
) -> None:
    async with triton() as stranger:
        assert (
            await code_of(fake.address, **other(role, stranger.address)) == f"{role}-is-grpc-port"
        )


async def test_second_address_that_cannot_be_reached_is_a_warning(fake: ControlledTriton) -> None:
    finding = only(await look(fake.address, http=refused_address()))
    assert (finding.code, finding.severity) == ("http-unreachable", Severity.WARNING)


# --- TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def speaking_tls(pair: Pair, client_ca: Path | None = None) -> ControlledTriton:
    pairs = [(pair.key.read_bytes(), pair.cert.read_bytes())]
    roots = client_ca.read_bytes() if client_ca else None
    credentials = grpc.ssl_server_credentials(pairs, roots, require_client_auth=bool(roots))
    server = triton(credentials=credentials)
    server.errors["RepositoryModelUnload"] = NOT_EXPLICIT
    return server


async def test_tls_that_fits_is_no_finding(authority: Authority) -> None:
    tls = TlsOptions(root_pem=authority.ca.read_bytes())
    async with speaking_tls(authority.issue("server", server=True)) as fake:
        found = await look(fake.address, tls=tls)
    assert found.reachable
    assert found.findings == ()


async def test_plaintext_client_of_a_tls_port(authority: Authority) -> None:
    async with speaking_tls(authority.issue("server", server=True)) as fake:
        assert await code_of(fake.address) == "plaintext-to-tls"


async def test_tls_client_of_a_plaintext_port(fake: ControlledTriton, authority: Authority) -> None:
    tls = TlsOptions(root_pem=authority.ca.read_bytes())
    assert await code_of(fake.address, tls=tls) == "tls-to-plaintext"


async def test_certificate_of_a_strange_authority(authority: Authority, tmp_path: Path) -> None:
    strange = Authority(tmp_path / "strange", "strange")
    tls = TlsOptions(root_pem=strange.ca.read_bytes())
    async with speaking_tls(authority.issue("server", server=True)) as fake:
        assert await code_of(fake.address, tls=tls) == "certificate-untrusted"


async def test_certificate_for_another_name_says_for_which(authority: Authority) -> None:
    tls = TlsOptions(root_pem=authority.ca.read_bytes(), server_name="triton.example")
    async with speaking_tls(authority.issue("server", server=True)) as fake:
        finding = only(await look(fake.address, tls=tls))
    assert finding.code == "certificate-name"
    assert "localhost" in finding.message
    assert "server_name: localhost" in finding.fix


async def test_expired_certificate(authority: Authority) -> None:
    class Past(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Past":
            return cls(2020, 1, 1, tzinfo=tz)

    with mock.patch("datetime.datetime", Past):
        pair = authority.issue("server", server=True)
    tls = TlsOptions(root_pem=authority.ca.read_bytes())
    async with speaking_tls(pair) as fake:
        assert await code_of(fake.address, tls=tls) == "certificate-expired"


async def test_server_that_wants_a_client_certificate(authority: Authority) -> None:
    pair = authority.issue("server", server=True)
    tls = TlsOptions(root_pem=authority.ca.read_bytes())
    async with speaking_tls(pair, client_ca=authority.ca) as fake:
        assert await code_of(fake.address, tls=tls) == "client-certificate"


async def test_tls_port_without_http2(authority: Authority) -> None:
    pair = authority.issue("server", server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    tls = TlsOptions(root_pem=authority.ca.read_bytes())
    async with ports.listening(ports.web_page(), tls=context) as address:
        assert await code_of(address, tls=tls) == "tls-not-grpc"


async def test_file_without_certificates_is_named(authority: Authority) -> None:
    tls = TlsOptions(root_pem=b"not a certificate")
    async with speaking_tls(authority.issue("server", server=True)) as fake:
        assert await code_of(fake.address, tls=tls) == "tls-files"


async def test_alert_for_want_of_a_client_certificate(authority: Authority) -> None:
    pair = authority.issue("server", server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    tls = TlsOptions(root_pem=authority.ca.read_bytes())
    with socket.create_server((HOST, 0)) as listener:
        serving = asyncio.get_running_loop().run_in_executor(None, shake_hands, listener, context)
        finding = only(await look(f"{HOST}:{listener.getsockname()[1]}", tls=tls))
        listener.shutdown(socket.SHUT_RDWR)
        await serving
    assert finding.code == "client-certificate"
    assert "ALERT" in finding.message


def shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Serve TLS handshakes with OpenSSL, which (unlike asyncio and gRPC) sends its alerts."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()
