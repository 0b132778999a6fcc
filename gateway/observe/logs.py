"""The event log and the one line a request, as JSON or for a console.

structlog without its global configuration, so that two gateways can run in one process.
"""

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TextIO, cast

import orjson
import structlog

from gateway.exchange import Exchange

Logger = structlog.typing.FilteringBoundLogger

_REDACTED_WORDS = ("authorization", "api_key", "password", "secret", "token")
_REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class RequestLogSettings:
    """Which requests get a line: `requests` is "all", "errors" or "none".

    `sample` is the share of the successful ones that does; errors always do.
    """

    requests: str
    sample: float


def make_logger(
    *, json: bool, level: str, stream: TextIO = sys.stderr, secrets: tuple[str, ...] = ()
) -> Logger:
    """Return the event log. Values in `secrets` are blanked wherever they turn up in a line."""
    renderer: Any = (
        structlog.processors.JSONRenderer(_to_json)
        if json
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    processors = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if json else _unchanged,
        _redact_keys,
        renderer,
        *([_redact_values(secrets)] if secrets else []),
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    return cast(
        Logger,
        structlog.wrap_logger(
            structlog.PrintLogger(stream),
            processors=processors,
            wrapper_class=structlog.make_filtering_bound_logger(number),
            cache_logger_on_first_use=True,
        ),
    )


class LibraryLogs(logging.Handler):
    """Passes what libraries log through the standard library on to the event log."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._logger.log(
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
        "route": exchange.route,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "duration_ms": _ms(exchange.duration_s),
        "stages_ms": {stage: _ms(spent) for stage, spent in exchange.spent_s.items()},
        "bytes_in": exchange.bytes_in,
        "bytes_out": exchange.bytes_out,
    }
    if exchange.model:
        fields |= {"model": exchange.model, "version": exchange.version}
    if exchange.attempts:
        fields |= {"server": exchange.server, "attempts": exchange.attempts}
    if exchange.detached:
        fields["detached"] = True
    if exchange.fault is not None:
        fields["error"] = exchange.fault.detail or exchange.fault.message
        fields["origin"] = exchange.fault.origin.value
    return fields


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _to_json(event: Mapping[str, Any], **_: Any) -> str:
    return orjson.dumps(event, default=str).decode()


def _unchanged(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return event


def _redact_keys(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in event:
        if any(word in key.lower() for word in _REDACTED_WORDS):
            event[key] = _REDACTED
    return event


def _redact_values(secrets: tuple[str, ...]) -> Callable[[Any, str, str], str]:
    def redact(_: Any, __: str, line: str) -> str:
        for secret in secrets:
            line = line.replace(secret, _REDACTED)
        return line

    return redact
