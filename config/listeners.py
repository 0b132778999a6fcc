"""The two listeners: the API that applications call, and the one for operators.

Decides what may be said about them. Opens no socket.
"""

from pydantic import Field

from config.fields import FileName, Host, ListenPort, MessageBytes, Seconds, Section, Text
from config.secrets import Secret


class ListenerTls(Section):
    """TLS on a listener."""

    cert_file: FileName
    """PEM file of the certificate, followed by the intermediate ones."""
    key_file: FileName
    """PEM file of the certificate's private key, without a pass phrase."""
    client_ca_file: FileName | None = None
    """PEM file of the authorities that client certificates are checked against. Set, every client
    must show one (mutual TLS). Unset, none is asked for."""


class Api(Section):
    """The listener that applications call: the Open Inference Protocol over HTTP."""

    host: Host = "0.0.0.0"
    """Address to listen on. The default is every IPv4 interface: the API is there to be reached.
    `::` is every interface."""
    port: ListenPort = 8080
    """TCP port. 8080, so that no rights are needed and a Triton on the same machine keeps 8000. 0
    takes any free port."""
    server_id: Text = "triton"
    """The name the gateway reports of itself at `/v2`. The default is the one a Triton reports
    unless it was started with another `--id`, and what Triton's own client examples check for."""
    max_body_bytes: MessageBytes = 268_435_456
    """Largest request body, in bytes as received; a larger one is refused with 413. 256 MiB holds
    a large batch of images and still fits many times into memory."""
    max_unpacked_bytes: MessageBytes = 268_435_456
    """Largest request body after it was decompressed, in bytes. The same as for plain bodies, so
    that compression is no way round that limit."""
    max_header_bytes: int = Field(32_768, ge=1_024, le=1_048_576)
    """Largest request line, and largest single header, in bytes. 32 KiB holds long tokens and
    cookies."""
    keepalive_timeout_s: Seconds = 75.0
    """How long an idle client connection is kept open, in seconds. Longer than the 60 s of common
    load balancers, so that they close first and no request meets a closing connection."""
    body_timeout_s: Seconds = 60.0
    """Longest wait between two pieces of a request body, in seconds. A minute forgives a bad
    network and still frees the memory of clients that have vanished."""
    tls: ListenerTls | None = None
    """Serve HTTPS. Unset, plain HTTP: usually a load balancer in front ends TLS."""


class Ops(Section):
    """The listener for operators: health, metrics and the view of the fleet."""

    host: Host = "127.0.0.1"
    """Address to listen on. By default only this machine: the view shows server addresses. Any
    other address needs `key`."""
    port: ListenPort = 8081
    """TCP port, the one after the API's. 0 takes any free port."""
    key: Secret | None = None
    """Key that callers must send as `Authorization: Bearer <key>`. Unset, callers are not asked,
    which is allowed on this machine's own addresses only."""
    allow_unauthenticated: bool = False
    """Allow an address other machines can reach without `key`. Off by default; switch it on only
    when something else, such as a network policy, keeps strangers out."""
    tls: ListenerTls | None = None
    """Serve HTTPS. Unset, plain HTTP."""
    scrape_timeout_s: Seconds = 5.0
    """How long a server's own metrics page may take when `/metrics/fleet` is asked for, in seconds.
    Half of Prometheus' usual scrape timeout, so that a dead server never costs the others' page."""
    max_metrics_page_bytes: int = Field(8_388_608, ge=1_024, le=268_435_456)
    """Largest metrics page taken from one server, in bytes. 8 MiB is a hundred times what a Triton
    with a hundred models writes."""
