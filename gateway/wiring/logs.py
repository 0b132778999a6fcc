"""What the section `logging` means for the event log and the request lines."""

import random

from config.models import Config
from gateway.observe.logs import Logger, LogStream, RequestLog, RequestLogSettings, make_logger
from gateway.wiring.clock import Environ


def logger_for(config: Config, environ: Environ, stream: LogStream) -> Logger:
    """Build the event log; the configured secrets never appear in it."""
    keys = [config.ops.key] if config.ops.key else []
    keys += [secret for server in config.servers for secret in server.metadata.values()]
    return make_logger(
        json=config.logging.format == "json",
        level=config.logging.level,
        stream=stream,
        secrets=tuple(key.reveal(environ) for key in keys),
    )


def request_log(config: Config, logger: Logger) -> RequestLog:
    """Build the writer of request lines."""
    settings = RequestLogSettings(config.logging.requests, config.logging.sample)
    return RequestLog(logger, settings, random.random)
