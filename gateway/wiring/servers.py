"""What the sections `servers` and `upstream` mean: connections, and what to examine."""

from pathlib import Path

from config.models import Config
from config.servers import Server as ServerConfig
from config.servers import ServerTls
from gateway.upstream.channels import ChannelOptions, ChannelPool
from gateway.upstream.findings import Target
from gateway.upstream.scrape import MetricsScraper
from gateway.upstream.tls import TlsOptions
from gateway.upstream.transport import Upstream
from gateway.wiring.clock import CLOCK, Environ


def upstream_of(config: Config, server: ServerConfig, environ: Environ) -> Upstream:
    """Open the connections to a server; its secrets must be there."""
    return Upstream(
        name=server.name,
        pool=ChannelPool(
            server.grpc,
            channel_options(config, server),
            identity_matters=server.expect is not None,
        ),
        metadata=_metadata(server, environ),
        cancel=server.cancel_upstream,
    )


def channel_options(config: Config, server: ServerConfig) -> ChannelOptions:
    """Return how the connections to a server are made. Raises OSError for its TLS files."""
    settings = config.upstream
    return ChannelOptions(
        channels=server.channels or settings.channels,
        connect_timeout_s=settings.connect_timeout_s,
        reconnect_backoff_min_s=settings.reconnect_backoff_min_s,
        reconnect_backoff_max_s=settings.reconnect_backoff_max_s,
        keepalive_interval_s=settings.keepalive_interval_s,
        max_reply_bytes=settings.max_reply_bytes,
        tls=upstream_tls(server.tls),
    )


def scraper_of(config: Config) -> MetricsScraper:
    """Build what reads the servers' own metrics."""
    addresses = {server.name: server.metrics for server in config.servers if server.metrics}
    return MetricsScraper(
        lambda: addresses,
        timeout_s=config.ops.scrape_timeout_s,
        max_page_bytes=config.ops.max_metrics_page_bytes,
        clock=CLOCK,
    )


def target_of(server: ServerConfig, environ: Environ) -> Target:
    """Return what to examine of a server; its secrets must be there."""
    return Target(
        grpc=server.grpc,
        http=server.http,
        metrics=server.metrics,
        tls=upstream_tls(server.tls),
        metadata=_metadata(server, environ),
        expect=server.expect,
    )


def upstream_tls(tls: ServerTls | None) -> TlsOptions | None:
    """Read the files of a server's TLS section."""
    if tls is None:
        return None
    return TlsOptions(
        root_pem=_read(tls.ca_file),
        cert_pem=_read(tls.cert_file),
        key_pem=_read(tls.key_file),
        server_name=tls.server_name,
    )


def _metadata(server: ServerConfig, environ: Environ) -> tuple[tuple[str, str], ...]:
    return tuple((name, key.reveal(environ)) for name, key in server.metadata.items())


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None
