"""Every error text known of Triton and of the gRPC library, and what it means to the gateway."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.answers import STATUS, error_body
from gateway.faults import Kind, Origin, Replay
from gateway.upstream.errors import RULES, to_fault

Code = grpc.StatusCode
UNKNOWN_MODEL = "Request for unknown model: 'm'"
ADDRESSES = "failed to connect to all addresses; last error: "
SERVER = "10.11.12.13:8001"

TEXTS = [
    # Triton itself: the model is not there
    (Code.NOT_FOUND, f"{UNKNOWN_MODEL} is not found", Kind.NOT_READY, Replay.SAFE),
    (Code.NOT_FOUND, f"{UNKNOWN_MODEL} has no available versions", Kind.NOT_READY, Replay.SAFE),
    (Code.NOT_FOUND, f"{UNKNOWN_MODEL} version 3 is not found", Kind.NOT_READY, Replay.SAFE),
    (
        Code.UNAVAILABLE,
        f"{UNKNOWN_MODEL} version 3 is not at ready state",
        Kind.NOT_READY,
        Replay.SAFE,
    ),
    # Triton itself: full, or too late
    (Code.UNAVAILABLE, "[request id: X] Exceeds maximum queue size", Kind.OVERLOADED, Replay.SAFE),
    (Code.UNAVAILABLE, "Request timeout expired", Kind.OVERLOADED, Replay.NEVER),
    (
        Code.UNAVAILABLE,
        "timeout of the corresponding sequence has been expired",
        Kind.OVERLOADED,
        Replay.NEVER,
    ),
    # Triton itself: going down
    (
        Code.UNAVAILABLE,
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        Kind.NOT_READY,
        Replay.SAFE,
    ),
    (Code.UNAVAILABLE, "Server exiting", Kind.NOT_READY, Replay.SAFE),
    (
        Code.UNAVAILABLE,
        "GRPC server is shutting down and has stopped accepting new requests.",
        Kind.NOT_READY,
        Replay.SAFE,
    ),
    # Triton itself: not allowed
    (
        Code.UNAVAILABLE,
        "This protocol is restricted, expecting header 'triton-grpc-protocol-key'",
        Kind.FORBIDDEN,
        Replay.NEVER,
    ),
    (
        Code.UNAVAILABLE,
        "This API is restricted, expecting header 'k'",
        Kind.FORBIDDEN,
        Replay.NEVER,
    ),
    (
        Code.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
        Kind.UNSUPPORTED,
        Replay.NEVER,
    ),
    # Triton itself: by its code
    (
        Code.INVALID_ARGUMENT,
        "unexpected inference input 'X' for model 'm'",
        Kind.INVALID,
        Replay.NEVER,
    ),
    (Code.INVALID_ARGUMENT, f"{UNKNOWN_MODEL} is not found", Kind.INVALID, Replay.NEVER),
    (
        Code.INTERNAL,
        "Failed to process the request(s) for model 'm_0_0', message: ValueError: x",
        Kind.FAILED,
        Replay.NEVER,
    ),
    (Code.UNKNOWN, "raised UNKNOWN", Kind.REJECTED, Replay.NEVER),
    (Code.NOT_FOUND, "no such row", Kind.NOT_FOUND, Replay.NEVER),
    (Code.ALREADY_EXISTS, "it exists", Kind.INVALID, Replay.NEVER),
    (Code.UNIMPLEMENTED, "not supported by this model", Kind.UNSUPPORTED, Replay.NEVER),
    (Code.CANCELLED, "", Kind.REJECTED, Replay.NEVER),
    (Code.UNAVAILABLE, "the model's own words", Kind.UNAVAILABLE, Replay.UNSURE),
    (
        Code.UNIMPLEMENTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
        Kind.UNSUPPORTED,
        Replay.NEVER,
    ),
    # the connection: never made
    (
        Code.UNAVAILABLE,
        f"{ADDRESSES}UNKNOWN: ipv4:{SERVER}: Failed to connect to remote host: Connection refused",
        Kind.UNREACHABLE,
        Replay.SAFE,
    ),
    (
        Code.UNAVAILABLE,
        f"{ADDRESSES}UNAVAILABLE: ipv4:{SERVER}: Socket closed",
        Kind.UNREACHABLE,
        Replay.SAFE,
    ),
    (
        Code.UNAVAILABLE,
        f"{ADDRESSES}UNKNOWN: ipv4:{SERVER}: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
        "SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER",
        Kind.UNREACHABLE,
        Replay.SAFE,
    ),
    (
        Code.UNAVAILABLE,
        f"errors resolving {SERVER}: [UNKNOWN: ipv6:[::1]: Domain name not found]",
        Kind.UNREACHABLE,
        Replay.SAFE,
    ),
    (
        Code.UNAVAILABLE,
        f"DNS resolution failed for {SERVER}: C-ares status is not ARES_SUCCESS",
        Kind.UNREACHABLE,
        Replay.SAFE,
    ),
    # the connection: lost with the request on it
    (Code.UNAVAILABLE, "Socket closed", Kind.BROKEN, Replay.UNSURE),
    (Code.UNAVAILABLE, "Stream removed (Socket closed)", Kind.BROKEN, Replay.UNSURE),
    (Code.UNAVAILABLE, "Too many pings", Kind.BROKEN, Replay.UNSURE),
    (Code.UNAVAILABLE, "GOAWAY received", Kind.BROKEN, Replay.UNSURE),
    (
        Code.UNAVAILABLE,
        f"ipv4:{SERVER}: recvmsg:Connection reset by peer",
        Kind.BROKEN,
        Replay.UNSURE,
    ),
    (Code.UNAVAILABLE, "keepalive watchdog timeout", Kind.BROKEN, Replay.UNSURE),
    # sizes
    (
        Code.RESOURCE_EXHAUSTED,
        "CLIENT: Received message larger than max (5000 vs. 1000)",
        Kind.BROKEN,
        Replay.NEVER,
    ),
    (
        Code.RESOURCE_EXHAUSTED,
        "SERVER: Received message larger than max (5000 vs. 1000)",
        Kind.TOO_LARGE,
        Replay.NEVER,
    ),
    (
        Code.RESOURCE_EXHAUSTED,
        "CLIENT: Sent message larger than max (5000 vs. 1000)",
        Kind.TOO_LARGE,
        Replay.NEVER,
    ),
    (
        Code.RESOURCE_EXHAUSTED,
        "received trailing metadata size exceeds soft limit (20000 vs. 16384)",
        Kind.FAILED,
        Replay.NEVER,
    ),
    (Code.RESOURCE_EXHAUSTED, "quota", Kind.FAILED, Replay.NEVER),
    # not a Triton at all
    (Code.UNIMPLEMENTED, "Method not found!", Kind.BROKEN, Replay.SAFE),
    # time
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Kind.DEADLINE, Replay.NEVER),
]


@pytest.mark.parametrize(("code", "text", "kind", "replay"), TEXTS)
def test_known_texts(code: Code, text: str, kind: Kind, replay: Replay) -> None:
    fault = to_fault(code, text)
    assert (fault.kind, fault.replay) == (kind, replay)


def test_every_rule_is_met_by_a_known_text() -> None:
    for rule in RULES:
        matching = [text for code, text, _, _ in TEXTS if rule.matches(code, text)]
        assert matching, rule.pattern


@pytest.mark.parametrize(("code", "text"), [row[:2] for row in TEXTS])
def test_no_caller_reads_an_address(code: Code, text: str) -> None:
    fault = to_fault(code, text)
    assert SERVER not in fault.message
    if SERVER in text:
        assert SERVER in str(fault.detail)  # but the log does


@pytest.mark.parametrize("kind", [Kind.NOT_READY, Kind.OVERLOADED, Kind.UNREACHABLE])
def test_what_may_be_over_soon_says_when_to_come_back(kind: Kind) -> None:
    faults = [to_fault(code, text) for code, text, k, _ in TEXTS if k is kind]
    assert {fault.retry_after_s for fault in faults} == {1}


def test_what_will_not_be_over_soon_says_nothing() -> None:
    assert to_fault(Code.INTERNAL, "x").retry_after_s is None
    assert to_fault(Code.UNAVAILABLE, "Socket closed").retry_after_s is None


@pytest.mark.parametrize(("code", "text"), [(Code.INTERNAL, None), (Code.CANCELLED, "")])
def test_an_error_without_a_text_is_named_by_its_code(code: Code, text: str | None) -> None:
    assert to_fault(code, text).message == code.name


def test_triton_s_own_words_are_passed_on() -> None:
    text = "unexpected shape for input 'IN' for model 'm'. Expected [-1,4], got [1,3]."
    fault = to_fault(Code.INVALID_ARGUMENT, text)
    assert (fault.message, fault.origin) == (text, Origin.UPSTREAM)


FRAGMENTS = st.sampled_from([text for _, text, _, _ in TEXTS] + [rule.pattern for rule in RULES])


@given(st.sampled_from(list(Code)), st.none() | st.text() | FRAGMENTS)
def test_any_status_becomes_a_fault_that_can_be_answered(code: Code, text: str | None) -> None:
    fault = to_fault(code, text)
    assert fault.kind in STATUS
    assert error_body(fault.message)
    assert fault.message


@given(st.sampled_from(list(Code)), st.text())
def test_only_what_is_known_not_to_have_run_may_be_sent_again(code: Code, text: str) -> None:
    if not any(rule.matches(code, text) for rule in RULES):
        assert to_fault(code, text).replay is not Replay.SAFE
