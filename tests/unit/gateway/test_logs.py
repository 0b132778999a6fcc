"""One line a request, for those that are to have one, and no secret in any line."""

import asyncio
import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.exchange import Exchange, Overreach, Refusal
from gateway.faults import Fault, Kind, Origin
from gateway.observe.logs import (
    LibraryLogs,
    LineBuffer,
    Logger,
    RequestLog,
    RequestLogSettings,
    make_logger,
)
from routing.classes import CRITICAL
from routing.priorities import Objection


class Lines:
    """A log of which the lines can be read."""

    def __init__(self, *, as_json: bool = True, level: str = "info", secrets: Any = ()) -> None:
        self.stream = io.BytesIO()
        self.logger: Logger = make_logger(
            json=as_json, level=level, stream=self.stream, secrets=tuple(secrets)
        )

    @property
    def text(self) -> str:
        return self.stream.getvalue().decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


def settled(fault: Fault | None = None, status: int = 200, **fields: Any) -> Exchange:
    """An exchange that took a quarter of a second."""
    times = iter([10.0, 10.25, 10.25])
    exchange = Exchange("r1", "10.0.0.9", "infer", lambda: next(times), next(times), fault=fault)
    exchange.status = status
    for name, value in fields.items():
        setattr(exchange, name, value)
    exchange.end()
    return exchange


FAILED = Fault(Kind.FAILED, "it raised", origin=Origin.UPSTREAM, detail="INTERNAL: it raised")


def observed(exchange: Exchange, *draws: float, requests: str = "all", sample: float = 1.0) -> Any:
    lines, numbers = Lines(), iter(draws)
    settings = RequestLogSettings(requests, sample)
    RequestLog(lines.logger, settings, lambda: next(numbers)).observe(exchange)
    return lines.events


# --- what a line says


def test_a_line_of_a_request_that_was_answered() -> None:
    (event,) = observed(
        settled(model="m", version="3", server="a", attempts=2, bytes_in=10, bytes_out=20)
    )
    assert event.pop("timestamp").endswith("Z")
    assert event.pop("stages_us") == {"receive": 250_000}
    assert event == {
        "event": "request",
        "level": "info",
        "request_id": "r1",
        "caller": "10.0.0.9",
        "tenant": "anonymous",
        "route": "infer",
        "status": 200,
        "outcome": "ok",
        "duration_ms": 250.0,
        "bytes_in": 10,
        "bytes_out": 20,
        "model": "m",
        "version": "3",
        "server": "a",
        "attempts": 2,
    }


def test_a_line_of_a_stream_counts_its_events() -> None:
    (event,) = observed(settled(events=3, first_event_s=10.125))
    assert (event["events"], event["first_event_ms"]) == (3, 125.0)


def test_a_line_of_a_failure_has_what_the_caller_does_not_read() -> None:
    (event,) = observed(settled(FAILED, status=500, detached=True, attempts=1, server="a"))
    assert (event["level"], event["outcome"], event["origin"]) == ("warning", "failed", "upstream")
    assert event["error"] == "INTERNAL: it raised"
    assert event["detached"] is True


def test_a_refusal_is_not_a_warning() -> None:
    (event,) = observed(settled(Fault.invalid("bad"), status=400))
    assert (event["level"], event["error"]) == ("info", "bad")
    assert not {"model", "version", "server", "attempts", "detached"} & set(event)


def test_a_line_has_the_class_of_a_request_that_has_one() -> None:
    (event,) = observed(settled(classed=True, priority_class=CRITICAL))
    assert event["class"] == "critical"
    assert not {"asked_in_vain", "would_object"} & set(event)


@pytest.mark.parametrize(("enforced", "word"), [(True, "asked_in_vain"), (False, "would_object")])
def test_a_line_says_what_was_asked_for_in_vain(enforced: bool, word: str) -> None:
    wanted = Overreach(Objection.LOWERED, "class critical", enforced=enforced)
    (event,) = observed(settled(overreach=wanted))
    assert event[word] == "lowered: class critical"


# --- which requests have one


@pytest.mark.parametrize(
    ("requests", "ok", "failed"), [("all", 1, 1), ("errors", 0, 1), ("none", 0, 0)]
)
def test_which_requests_have_a_line(requests: str, ok: int, failed: int) -> None:
    assert len(observed(settled(), requests=requests)) == ok
    assert len(observed(settled(FAILED, status=500), requests=requests)) == failed


@pytest.mark.parametrize(
    ("sample", "draw", "lines"),
    [(0.25, 0.2499, 1), (0.25, 0.25, 0), (0.0, 0.0, 0), (0.999, 0.9989, 1)],
)
def test_successes_are_sampled_and_failures_are_not(sample: float, draw: float, lines: int) -> None:
    assert len(observed(settled(), draw, sample=sample)) == lines
    assert len(observed(settled(FAILED, status=500), sample=sample)) == 1


def test_a_full_sample_draws_nothing() -> None:
    assert len(observed(settled(), sample=1.0)) == 1


# --- secrets


@pytest.mark.parametrize("as_json", [True, False])
def test_a_secret_is_blanked_wherever_it_turns_up(as_json: bool) -> None:
    lines = Lines(as_json=as_json, secrets=["s3cret", "key2"])
    lines.logger.info("got s3cret", header="Bearer s3cret", deep={"a": ["xkey2x"]}, s3cret=1)
    assert "s3cret" not in lines.text
    assert "key2" not in lines.text
    assert lines.text.count("[redacted]") == 4


def test_a_secret_is_blanked_in_a_traceback() -> None:
    lines = Lines(secrets=["s3cret"])
    try:
        raise ValueError("s3cret")
    except ValueError:
        lines.logger.exception("it failed")
    assert "ValueError: [redacted]" in lines.events[0]["exception"]
    assert "s3cret" not in lines.text


@pytest.mark.parametrize("secret", ['pass"word', "back\\slash"])
def test_a_secret_is_blanked_in_the_form_json_gives_it(secret: str) -> None:
    lines = Lines(secrets=[secret])
    lines.logger.info("event", value=secret)
    assert lines.events[0]["value"] == "[redacted]"


# --- the event log


def test_levels_below_the_configured_one_are_dropped() -> None:
    lines = Lines(level="warning")
    lines.logger.info("no")
    lines.logger.warning("yes")
    assert [event["event"] for event in lines.events] == ["yes"]


def test_a_console_gets_lines_for_people() -> None:
    lines = Lines(as_json=False)
    lines.logger.warning("server down", server="a")
    assert "server down" in lines.text
    assert "server=a" in lines.text
    assert "\x1b" not in lines.text  # no colours where nobody looks


def test_what_json_does_not_know_is_written_as_text() -> None:
    lines = Lines()
    lines.logger.info("event", kind=Kind.FAILED, path=io.BytesIO)
    assert lines.events[0]["path"] == "<class '_io.BytesIO'>"


@pytest.mark.parametrize("as_json", [True, False])
@given(text=st.text())
def test_any_text_can_be_logged(as_json: bool, text: str) -> None:
    lines = Lines(as_json=as_json)
    lines.logger.info("event", error=text)
    assert lines.text.startswith("{") if as_json else "event" in lines.text


@pytest.mark.parametrize("as_json", [True, False])
def test_bytes_of_a_header_that_are_not_utf_8_can_be_logged(as_json: bool) -> None:
    lines = Lines(as_json=as_json)
    lines.logger.info("event", error=b"caf\xe9".decode(errors="surrogateescape"))
    assert "caf" in lines.text


def test_what_libraries_log_joins_the_event_log() -> None:
    lines = Lines()
    library = logging.Logger("some.library")
    library.addHandler(LibraryLogs(lambda: lines.logger))
    library.warning("it is %s", "so")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        library.exception("it broke")
    warned, broke = lines.events
    assert (warned["event"], warned["level"], warned["logger"]) == (
        "it is so",
        "warning",
        "some.library",
    )
    assert "exc_info" not in warned
    assert "RuntimeError: boom" in broke["exception"]


# --- lines written together


async def test_lines_are_written_together_a_moment_later() -> None:
    stream = io.BytesIO()
    buffer = LineBuffer(stream)
    for line in (b"one\n", b"two\n"):
        buffer.write(line)
        buffer.flush()
    assert stream.getvalue() == b""
    async with asyncio.timeout(2):
        while not stream.getvalue():
            await asyncio.sleep(0.01)
    assert stream.getvalue() == b"one\ntwo\n"
    buffer.write(b"three\n")
    buffer.write_out()
    buffer.write_out()
    assert stream.getvalue() == b"one\ntwo\nthree\n"


def test_outside_a_loop_lines_are_written_at_once() -> None:
    stream = io.BytesIO()
    buffer = LineBuffer(stream)
    buffer.write(b"one\n")
    buffer.flush()
    assert stream.getvalue() == b"one\n"
    assert buffer.isatty() is False


async def test_many_lines_are_not_kept_waiting() -> None:
    stream = io.BytesIO()
    buffer = LineBuffer(stream)
    for _ in range(5000):
        buffer.write(b"line\n")
        buffer.flush()
    assert len(stream.getvalue().splitlines()) == 5000


# --- callers


def test_a_line_says_why_a_caller_was_refused_or_would_have_been() -> None:
    (refused,) = observed(settled(refusal=Refusal("expired", "a", enforced=True)))
    (passed,) = observed(settled(refusal=Refusal("model", "a", enforced=False)))
    assert refused["refused"] == "expired"
    assert "would_refuse" not in refused
    assert passed["would_refuse"] == "model"
    assert "refused" not in passed


def test_what_looks_like_a_callers_key_is_blanked() -> None:
    lines = Lines()
    lines.logger.warning("x", path="/v2/tgk_0123456789ab_secret-Part_1/y", cut="tgk_0123456789ab_s")
    (event,) = lines.events
    assert (event["path"], event["cut"]) == ("/v2/[redacted]/y", "[redacted]")


def test_on_a_shared_stream_lines_are_written_whole() -> None:
    written: list[bytes] = []

    class Pipe(io.BytesIO):
        def write(self, part: bytes) -> int:  # type: ignore[override]
            written.append(part)
            return len(part)

    buffer = LineBuffer(Pipe(), at_once_bytes=10)
    for line in (b"four\n", b"five\n", b"6\n", b"longer than ten\n", b"7\n"):
        buffer.write(line)
    buffer.write_out()
    assert written == [b"four\nfive\n", b"6\n", b"longer than ten\n", b"7\n"]
