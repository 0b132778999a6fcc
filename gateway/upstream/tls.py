"""TLS towards the servers: what is configured, and the context made of it."""

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS to a server. `root_pem` None means the system's roots; with `cert_pem` it is mTLS."""

    root_pem: bytes | None = None
    cert_pem: bytes | None = None
    key_pem: bytes | None = None
    server_name: str | None = None


def client_context(tls: TlsOptions, protocols: list[str]) -> ssl.SSLContext:
    """Build the context; `protocols` are offered by ALPN. Raises ssl.SSLError, ValueError."""
    roots = tls.root_pem.decode("ascii") if tls.root_pem is not None else None
    context = ssl.create_default_context(cadata=roots)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which gRPC does not ask for either
    context.set_alpn_protocols(protocols)
    if tls.cert_pem is not None and tls.key_pem is not None:
        _load_pair(context, tls.cert_pem, tls.key_pem)
    return context


def _load_pair(context: ssl.SSLContext, cert_pem: bytes, key_pem: bytes) -> None:
    # The library reads files only. The folder is this user's alone, and gone at once.
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "pair.pem")
        pair.write_bytes(cert_pem + b"\n" + key_pem)
        context.load_cert_chain(pair)
