"""What the section `logging` means for the event log and the request lines."""

import random
from collections.abc import Iterable

from config.models import Config
from gateway.observe.logs import Logger, LogStream, RequestLog, RequestLogSettings, make_logger


def logger_for(config: Config, secrets: Iterable[str], stream: LogStream) -> Logger:
    """Build the event log; the `secrets` never appear in it."""
    return make_logger(
        json=config.logging.format == "json",
        level=config.logging.level,
        stream=stream,
        secrets=tuple(secrets),
    )


def request_log(config: Config, logger: Logger) -> RequestLog:
    """Build the writer of request lines."""
    settings = RequestLogSettings(config.logging.requests, config.logging.sample)
    return RequestLog(logger, settings, random.random)
