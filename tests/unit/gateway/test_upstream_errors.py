"""Every error text known of Triton and of the gRPC library, and what it means to the gateway."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.answers import STATUS, error_body
from gateway.faults import Blame, Kind, Origin, Replay
from gateway.upstream.errors import RULES, of_text, to_fault

Code = grpc.StatusCode
UNKNOWN_MODEL = "Request for unknown model: 'm'"
ADDRESSES = "failed to connect to all addresses; last error: "
SERVER = "10.11.12.13:8001"

TEXTS = [
    # Triton itself: the model is not there
    (Code.NOT_FOUND, f"{UNKNOWN_MODEL} is not found", Kind.NOT_READY, Replay.SAFE, Blame.UNTOLD),
    (
        Code.NOT_FOUND,
        f"{UNKNOWN_MODEL} has no available versions",
        Kind.NOT_READY,
        Replay.SAFE,
        Blame.UNTOLD,
    ),
    (
        Code.NOT_FOUND,
        f"{UNKNOWN_MODEL} version 3 is not found",
        Kind.NOT_READY,
        Replay.SAFE,
        Blame.UNTOLD,
    ),
    (
        Code.UNAVAILABLE,
        f"{UNKNOWN_MODEL} version 3 is not at ready state",
        Kind.NOT_READY,
        Replay.SAFE,
        Blame.UNTOLD,
    ),
    # Triton itself: full, or too late
    (
        Code.UNAVAILABLE,
        "[request id: X] Exceeds maximum queue size",
        Kind.OVERLOADED,
        Replay.SAFE,
        Blame.OVERLOAD,
    ),
    (Code.UNAVAILABLE, "Request timeout expired", Kind.OVERLOADED, Replay.NEVER, Blame.OVERLOAD),
    (
        Code.UNAVAILABLE,
        "timeout of the corresponding sequence has been expired",
        Kind.OVERLOADED,
        Replay.NEVER,
        Blame.OVERLOAD,
    ),
    # Triton itself: going down
    (
        Code.UNAVAILABLE,
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        Kind.DRAINING,
        Replay.SAFE,
        Blame.UNTOLD,
    ),
    (Code.UNAVAILABLE, "Server exiting", Kind.DRAINING, Replay.SAFE, Blame.UNTOLD),
    (
        Code.UNAVAILABLE,
        "GRPC server is shutting down and has stopped accepting new requests.",
        Kind.DRAINING,
        Replay.SAFE,
        Blame.UNTOLD,
    ),
    # Triton itself: not allowed
    (
        Code.UNAVAILABLE,
        "This protocol is restricted, expecting header 'triton-grpc-protocol-key'",
        Kind.FORBIDDEN,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.UNAVAILABLE,
        "This API is restricted, expecting header 'k'",
        Kind.FORBIDDEN,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
        Kind.UNSUPPORTED,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    # Triton itself: by its code
    (
        Code.INVALID_ARGUMENT,
        "unexpected inference input 'X' for model 'm'",
        Kind.INVALID,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.INVALID_ARGUMENT,
        f"{UNKNOWN_MODEL} is not found",
        Kind.INVALID,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.INTERNAL,
        "Failed to process the request(s) for model 'm_0_0', message: ValueError: x",
        Kind.FAILED,
        Replay.NEVER,
        Blame.VERSION,
    ),
    # Triton itself: what will not pass by itself
    (
        Code.INTERNAL,
        "Failed to process the request(s) for model instance 'm_0', message: Stub process 'm_0' is"
        " not healthy.",
        Kind.FAILED,
        Replay.NEVER,
        Blame.FATAL,
    ),
    (
        Code.INTERNAL,
        "The stub process has exited unexpectedly.",
        Kind.FAILED,
        Replay.NEVER,
        Blame.FATAL,
    ),
    (
        Code.INTERNAL,
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        Kind.FAILED,
        Replay.NEVER,
        Blame.FATAL,
    ),
    # ... and by its code again
    (Code.UNKNOWN, "raised UNKNOWN", Kind.REJECTED, Replay.NEVER, Blame.VERSION),
    (Code.NOT_FOUND, "no such row", Kind.NOT_FOUND, Replay.NEVER, Blame.NOBODY),
    (Code.ALREADY_EXISTS, "it exists", Kind.INVALID, Replay.NEVER, Blame.NOBODY),
    (
        Code.UNIMPLEMENTED,
        "not supported by this model",
        Kind.UNSUPPORTED,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (Code.CANCELLED, "", Kind.REJECTED, Replay.NEVER, Blame.UNTOLD),
    (Code.UNAVAILABLE, "the model's own words", Kind.UNAVAILABLE, Replay.UNSURE, Blame.VERSION),
    (
        Code.UNIMPLEMENTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
        Kind.UNSUPPORTED,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    # the connection: never made
    (
        Code.UNAVAILABLE,
        f"{ADDRESSES}UNKNOWN: ipv4:{SERVER}: Failed to connect to remote host: Connection refused",
        Kind.UNREACHABLE,
        Replay.SAFE,
        Blame.SERVER,
    ),
    (
        Code.UNAVAILABLE,
        f"{ADDRESSES}UNAVAILABLE: ipv4:{SERVER}: Socket closed",
        Kind.UNREACHABLE,
        Replay.SAFE,
        Blame.SERVER,
    ),
    (
        Code.UNAVAILABLE,
        f"{ADDRESSES}UNKNOWN: ipv4:{SERVER}: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
        "SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER",
        Kind.UNREACHABLE,
        Replay.SAFE,
        Blame.SERVER,
    ),
    (
        Code.UNAVAILABLE,
        f"errors resolving {SERVER}: [UNKNOWN: ipv6:[::1]: Domain name not found]",
        Kind.UNREACHABLE,
        Replay.SAFE,
        Blame.SERVER,
    ),
    (
        Code.UNAVAILABLE,
        f"DNS resolution failed for {SERVER}: C-ares status is not ARES_SUCCESS",
        Kind.UNREACHABLE,
        Replay.SAFE,
        Blame.SERVER,
    ),
    (
        Code.UNAVAILABLE,
        f"no connection to {SERVER}: Connection refused",
        Kind.UNREACHABLE,
        Replay.SAFE,
        Blame.SERVER,
    ),
    # the connection: lost before the server had the whole request
    (
        Code.UNAVAILABLE,
        f"the call was not taken by {SERVER}: Socket closed",
        Kind.BROKEN,
        Replay.SAFE,
        Blame.SERVER,
    ),
    # the connection: lost with the request on it
    (
        Code.UNAVAILABLE,
        f"lost the connection to {SERVER}: Socket closed",
        Kind.BROKEN,
        Replay.UNSURE,
        Blame.SERVER,
    ),
    (Code.UNAVAILABLE, "Socket closed", Kind.BROKEN, Replay.UNSURE, Blame.SERVER),
    (Code.UNAVAILABLE, "Stream removed (Socket closed)", Kind.BROKEN, Replay.UNSURE, Blame.SERVER),
    (Code.UNAVAILABLE, "Too many pings", Kind.BROKEN, Replay.UNSURE, Blame.SERVER),
    (Code.UNAVAILABLE, "GOAWAY received", Kind.BROKEN, Replay.UNSURE, Blame.SERVER),
    (
        Code.UNAVAILABLE,
        f"ipv4:{SERVER}: recvmsg:Connection reset by peer",
        Kind.BROKEN,
        Replay.UNSURE,
        Blame.SERVER,
    ),
    (Code.UNAVAILABLE, "keepalive watchdog timeout", Kind.BROKEN, Replay.UNSURE, Blame.SERVER),
    # sizes
    (
        Code.RESOURCE_EXHAUSTED,
        "CLIENT: Received message larger than max (5000 vs. 1000)",
        Kind.BROKEN,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.RESOURCE_EXHAUSTED,
        "SERVER: Received message larger than max (5000 vs. 1000)",
        Kind.TOO_LARGE,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.RESOURCE_EXHAUSTED,
        "CLIENT: Sent message larger than max (5000 vs. 1000)",
        Kind.TOO_LARGE,
        Replay.NEVER,
        Blame.NOBODY,
    ),
    (
        Code.RESOURCE_EXHAUSTED,
        "received trailing metadata size exceeds soft limit (20000 vs. 16384)",
        Kind.FAILED,
        Replay.NEVER,
        Blame.VERSION,
    ),
    (Code.RESOURCE_EXHAUSTED, "quota", Kind.FAILED, Replay.NEVER, Blame.VERSION),
    # not a Triton at all
    (Code.UNIMPLEMENTED, "Method not found!", Kind.BROKEN, Replay.SAFE, Blame.SERVER),
    # time
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Kind.DEADLINE, Replay.NEVER, Blame.SLOW),
]


@pytest.mark.parametrize(("code", "text", "kind", "replay", "blame"), TEXTS)
def test_known_texts(code: Code, text: str, kind: Kind, replay: Replay, blame: Blame) -> None:
    fault = to_fault(code, text)
    assert (fault.kind, fault.replay, fault.blame) == (kind, replay, blame)


def test_every_rule_is_met_by_a_known_text() -> None:
    for rule in RULES:
        matching = [text for code, text, *_ in TEXTS if rule.matches(code, text)]
        assert matching, rule.pattern


@pytest.mark.parametrize(("code", "text"), [row[:2] for row in TEXTS])
def test_no_caller_reads_an_address(code: Code, text: str) -> None:
    fault = to_fault(code, text)
    assert SERVER not in fault.message
    if SERVER in text:
        assert SERVER in str(fault.detail)  # but the log does


@pytest.mark.parametrize("kind", [Kind.NOT_READY, Kind.DRAINING, Kind.OVERLOADED, Kind.UNREACHABLE])
def test_what_may_be_over_soon_says_when_to_come_back(kind: Kind) -> None:
    faults = [to_fault(code, text) for code, text, k, *_ in TEXTS if k is kind]
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


FRAGMENTS = st.sampled_from([text for _, text, *_ in TEXTS] + [rule.pattern for rule in RULES])


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


@given(st.sampled_from(list(Code)), st.text())
def test_what_is_not_known_is_never_fatal_and_no_answer(code: Code, text: str) -> None:
    if not any(rule.matches(code, text) for rule in RULES):
        assert to_fault(code, text).blame is not Blame.FATAL
        assert to_fault(code, text).blame is not Blame.SERVER


def test_a_python_model_s_own_error_is_not_fatal() -> None:
    text = "Failed to process the request(s) for model 'm_0_0', message: ValueError: CUDA is great"
    assert to_fault(Code.INTERNAL, text).blame is Blame.VERSION


# --- errors inside a stream, which have no code


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in TEXTS
        if any(r.source not in ("grpc", "gateway") and r.matches(*row[:2]) for r in RULES)
    ],
)
def test_the_text_alone_tells_what_triton_means(row: tuple[Code, str, Kind, Replay, Blame]) -> None:
    fault = of_text(row[1])
    assert (fault.kind, fault.replay, fault.blame) == row[2:]


@pytest.mark.parametrize(
    "text",
    [
        "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing ...",
        "expected number of inputs between 1 and 4 but got 0 inputs for model 'm'. Got ...",
        "unexpected inference input 'x' for model 'm'",
        "unexpected inference output 'x' for model 'm'",
        "unexpected shape for input 'IN' for model 'm'. Expected [-1,4], got [1,3].",
        "inference input 'IN' data-type is 'INT64', but model 'm' expects 'INT32'",
        "input 'IN' already exists in request",
        "input 'IN' batch size does not match other inputs for 'm'",
        "inference request batch-size must be <= 4 for 'm'",
        "inference request for sequence 5 to model 'm' must specify the START flag on the first",
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        "input byte size mismatch for input 'IN' for model 'm'. Expected 4, got 8",
    ],
)
@pytest.mark.parametrize("prefix", ["", "[request id: <id_unknown>] ", "[request id: a b] "])
def test_what_does_not_fit_the_model_is_the_callers_fault(prefix: str, text: str) -> None:
    fault = of_text(prefix + text)
    assert (fault.kind, fault.blame) == (Kind.INVALID, Blame.NOBODY)
    assert fault.message == prefix + text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "An Error Occurred",
        "the transport of goods: Connection reset, Socket closed",
        "Failed to process the request(s) for model 'm_0_0', message: expected 2 inputs but got 1",
    ],
)
def test_any_other_text_is_the_models_own(text: str) -> None:
    fault = of_text(text)
    assert (fault.kind, fault.replay, fault.blame) == (Kind.FAILED, Replay.NEVER, Blame.VERSION)
