"""What the sections `api` and `ops` mean for the listeners."""

import ssl

from config.listeners import ListenerTls
from config.models import Config
from gateway.edge.listener import HttpLimits


def listener_tls(tls: ListenerTls | None) -> ssl.SSLContext | None:
    """Build a listener's TLS context. Raises OSError (ssl.SSLError) for files of no use."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    if tls.client_ca_file is not None:
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def http_limits(config: Config) -> HttpLimits:
    """Return the bounds of the API's HTTP layer."""
    return HttpLimits(
        max_header_bytes=config.api.max_header_bytes,
        header_timeout_s=config.api.header_timeout_s,
        keepalive_timeout_s=config.api.keepalive_timeout_s,
    )
