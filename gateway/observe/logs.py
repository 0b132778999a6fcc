"""The event log and the one line a request, as JSON or for a console.

structlog without its global configuration, so that two gateways can run in one process.
"""

import asyncio
import json as json_module
import logging
import math
import re
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

import orjson
import structlog

from gateway.exchange import Admitted, Exchange

Logger = structlog.typing.FilteringBoundLogger


_FLUSH_INTERVAL_S = 0.1
_FLUSH_LINES = 1000
_SHOWN_PATH = 200
_KEY = re.compile(rb"tgk_([0-9a-f]{12})[A-Za-z0-9_-]*")
"""An API key, or the beginning of one, wherever its owner may have written it."""


class LineBuffer:
    """A stream that writes lines together, at the latest a tenth of a second later.

    A write for each line would be one of the dearest parts of a small request. Outside an event
    loop lines are written at once. Where several processes share the stream, `at_once_bytes` is how
    much one may write without being interrupted; a longer line still may be.
    """

    def __init__(self, stream: BinaryIO, *, at_once_bytes: int | None = None) -> None:
        self._stream = stream
        self._at_once_bytes = at_once_bytes
        self._lines: list[bytes] = []
        self._scheduled = False

    def write(self, line: bytes) -> None:
        """Take one line."""
        self._lines.append(line)

    def flush(self) -> None:
        """Write soon; called behind every line."""
        if len(self._lines) >= _FLUSH_LINES:
            self.write_out()
        elif not self._scheduled:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self.write_out()
            else:
                self._scheduled = True
                loop.call_later(_FLUSH_INTERVAL_S, self._on_time)

    def isatty(self) -> bool:
        """Whether a person may be watching."""
        return self._stream.isatty()

    def write_out(self) -> None:
        """Write every line now."""
        lines, self._lines = self._lines, []
        for part in self._parts(lines):
            self._stream.write(part)
            self._stream.flush()

    def _parts(self, lines: list[bytes]) -> Iterator[bytes]:
        begin = size = 0
        most = self._at_once_bytes or math.inf
        for number, line in enumerate(lines):
            if size and size + len(line) > most:
                yield b"".join(lines[begin:number])
                begin, size = number, 0
            size += len(line)
        if size:
            yield b"".join(lines[begin:])

    def _on_time(self) -> None:
        self._scheduled = False
        self.write_out()


class LogStream(Protocol):
    """Where lines go: a binary file, or a `LineBuffer`."""

    def write(self, line: bytes, /) -> Any:
        """Take bytes."""

    def flush(self) -> None:
        """Write what was taken."""

    def isatty(self) -> bool:
        """Whether a person may be watching."""


@dataclass(frozen=True, slots=True)
class RequestLogSettings:
    """Which requests get a line: `requests` is "all", "errors" or "none".

    `sample` is the share of the successful ones that does; errors always do.
    """

    requests: str
    sample: float


def make_logger(
    *, json: bool, level: str, stream: LogStream, secrets: tuple[str, ...] = ()
) -> Logger:
    """Return the event log. Values in `secrets` are blanked wherever they turn up in a line."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        processors += [structlog.processors.format_exc_info, _to_json]
    else:
        processors += [structlog.dev.ConsoleRenderer(colors=stream.isatty()), _to_bytes]
    processors.append(_hide_keys)
    if secrets:
        forms = {form for secret in secrets for form in (secret.encode(), _escaped(secret))}
        processors.append(_redact(sorted(forms, key=len, reverse=True)))
    number = logging.getLevelNamesMapping()[level.upper()]
    return cast(
        Logger,
        structlog.wrap_logger(
            structlog.BytesLogger(cast(BinaryIO, stream)),
            processors=processors,
            wrapper_class=structlog.make_filtering_bound_logger(number),
            cache_logger_on_first_use=True,
        ),
    )


class LibraryLogs(logging.Handler):
    """Passes what libraries log through the standard library on to the event log."""

    def __init__(self, logger: Callable[[], Logger]) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._logger().log(
            record.levelno,
            record.getMessage(),
            logger=record.name,
            **({"exc_info": record.exc_info} if record.exc_info else {}),
        )


class RequestLog:
    """Writes one line a settled request; see `gateway.ports.Observer`."""

    def __init__(
        self, logger: Logger, settings: RequestLogSettings, random: Callable[[], float]
    ) -> None:
        self._logger = logger
        self._settings = settings
        self._random = random

    def observe(self, exchange: Exchange) -> None:
        """Write the line, if this request is to have one."""
        if not self._wanted(exchange):
            return
        log = self._logger.info if exchange.status < 500 else self._logger.warning
        log("request", **_fields(exchange))

    def _wanted(self, exchange: Exchange) -> bool:
        if self._settings.requests == "none":
            return False
        if exchange.fault is not None:
            return True
        if self._settings.requests == "errors":
            return False
        return self._settings.sample >= 1.0 or self._random() < self._settings.sample


def _fields(exchange: Exchange) -> dict[str, object]:
    fields: dict[str, object] = {
        "request_id": exchange.request_id,
        "caller": exchange.caller,
        "tenant": exchange.tenant,
        "route": exchange.route,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "duration_ms": round(exchange.duration_s * 1000, 3),
        "stages_us": {stage: int(spent * 1e6) for stage, spent in exchange.spent_s.items()},
        "bytes_in": exchange.bytes_in,
        "bytes_out": exchange.bytes_out,
    }
    if exchange.model:
        fields |= {"model": exchange.model, "version": exchange.version}
    else:
        fields["path"] = exchange.path[:_SHOWN_PATH]
    if exchange.refusal is not None:
        word = "refused" if exchange.refusal.enforced else "would_refuse"
        fields[word] = exchange.refusal.reason
    if exchange.classed:
        fields["class"] = exchange.priority_class.name
    if exchange.overreach is not None:
        word = "asked_in_vain" if exchange.overreach.enforced else "would_object"
        fields[word] = f"{exchange.overreach.objection.value}: {exchange.overreach.asked}"
    fields |= _admission(exchange)
    if exchange.alias:
        fields["alias"] = exchange.alias
    if exchange.attempts:
        fields |= {"server": exchange.server, "attempts": exchange.attempts}
    if exchange.dropped_headers:
        fields["dropped_headers"] = exchange.dropped_headers
    if exchange.first_event_s is not None:
        fields["events"] = exchange.events
        first_s = exchange.first_event_s - exchange.started_s
        fields["first_event_ms"] = round(first_s * 1000, 3)
    if exchange.detached:
        fields["detached"] = True
    if exchange.fault is not None:
        fields["error"] = exchange.fault.detail or exchange.fault.message
        fields["origin"] = exchange.fault.origin.value
    return fields


def _admission(exchange: Exchange) -> dict[str, object]:
    if exchange.admission in (None, Admitted.PASSED):
        return {}
    return {"admission": exchange.admission, "queued_us": int(exchange.queued_s * 1e6)}


def _to_json(_: Any, __: str, event: MutableMapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(event, default=str)
    except TypeError:  # a header that is not UTF-8, which the standard library escapes
        return json_module.dumps(event, default=str).encode()


def _to_bytes(_: Any, __: str, line: str) -> bytes:
    return line.encode(errors="backslashreplace")


def _hide_keys(_: Any, __: str, line: bytes) -> bytes:
    """Blank callers' API keys."""
    return _KEY.sub(b"[redacted]", line) if b"tgk_" in line else line


def _escaped(secret: str) -> bytes:
    """Return the form a secret has inside a JSON string."""
    return orjson.dumps(secret)[1:-1]


def _redact(secrets: list[bytes]) -> Callable[[Any, str, bytes], bytes]:
    def redact(_: Any, __: str, line: bytes) -> bytes:
        for secret in secrets:
            line = line.replace(secret, b"[redacted]")
        return line

    return redact
