"""What the sections `servers` and `upstream` mean: connections, and what to examine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
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

_TREATMENT = {"capacity", "zone", "cost_per_hour", "serve", "pool"}


@dataclass(frozen=True, slots=True)
class Link:
    """Everything the connections to a server depend on: as long as it is equal, they are kept.

    It holds secrets, and so is never shown.
    """

    grpc: str
    expect: str | None
    cancel: str
    options: ChannelOptions = field(repr=False)
    metadata: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Connecting:
    """How one configuration connects this process to servers.

    A process that `only_probes` needs one connection a server.
    """

    config: Config
    environ: Environ
    only_probes: bool = False

    def link(self, server: ServerConfig) -> Link:
        """Return what a server's connections depend on.

        Raises OSError or ValueError for a certificate or secret that is not there.
        """
        options = _channel_options(self.config, server)
        return Link(
            grpc=server.grpc,
            expect=server.expect,
            cancel=server.cancel_upstream,
            options=replace(options, channels=1) if self.only_probes else options,
            metadata=_metadata(server, self.environ),
        )

    def target(self, server: ServerConfig) -> Target:
        """Return what to examine of a server. Raises as above."""
        return target_of(server, self.environ)


def upstream_of(name: str, link: Link) -> Upstream:
    """Open the connections to a server."""
    return Upstream(
        name=name,
        pool=ChannelPool(link.grpc, link.options, identity_matters=link.expect is not None),
        metadata=link.metadata,
        cancel=link.cancel,
    )


def _channel_options(config: Config, server: ServerConfig) -> ChannelOptions:
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


def same_connection(one: ServerConfig, other: ServerConfig) -> bool:
    """Whether a server that is described differently can keep its connections and its probes."""
    return one.model_dump(exclude=_TREATMENT) == other.model_dump(exclude=_TREATMENT)


def unusable(server: ServerConfig, environ: Environ) -> str | None:
    """Return why a discovered server cannot be connected to as described, if so."""
    try:
        target_of(server, environ)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def scraper_of(config: Config, servers: Callable[[], Iterable[ServerConfig]]) -> MetricsScraper:
    """Build what reads the own metrics of the `servers` of the moment."""

    def addresses() -> dict[str, str]:
        return {server.name: server.metrics for server in servers() if server.metrics}

    return MetricsScraper(
        addresses,
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
