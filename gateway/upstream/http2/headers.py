"""Header blocks of gRPC calls: what is sent, and what came (RFC 7541, gRPC over HTTP/2).

Requests are written without any compression, so that a block never depends on an earlier one and
is built once for all calls that share it. The other end is told to do the same, so that equal
bytes always mean equal headers and are decoded once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

import hpack

_KEPT_BLOCKS = 256
_KEPT_BYTES = 512
_POST, _HTTP, _HTTPS = b"\x83", b"\x86", b"\x87"  # of the static table
_USER_AGENT = "triton-gateway"


@dataclass(frozen=True, slots=True)
class Fields:
    """What matters of a header block; None for what is not in it.

    `status` is HTTP's. With a `grpc_status` the call is over.
    """

    status: str | None
    content_type: str
    grpc_status: int | None
    grpc_message: str


_OVERSIZED = Fields(None, "", 8, "received metadata size exceeds the limit")  # RESOURCE_EXHAUSTED


def request_block(
    *, path: str, authority: str, tls: bool, metadata: Iterable[tuple[str, str]]
) -> bytes:
    """Return the header block of calls to one method with the same metadata."""
    lines = [
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", _USER_AGENT),
        *metadata,
    ]
    return _POST + (_HTTPS if tls else _HTTP) + b"".join(literal(*line) for line in lines)


def timeout_field(timeout_s: float) -> bytes:
    """Return the header that tells the server the deadline: at most eight digits, rounded up."""
    ms = int(timeout_s * 1000) + 1
    text = f"{ms}m" if ms < 10**8 else f"{min(ms // 1000, 10**8 - 1)}S"
    return literal("grpc-timeout", text)


def literal(name: str, value: str) -> bytes:
    """Return one header that neither end keeps in its table. Names are lower case."""
    raw_name, raw_value = name.encode("latin-1"), value.encode("latin-1")
    return b"\0" + _length(len(raw_name)) + raw_name + _length(len(raw_value)) + raw_value


def _length(number: int) -> bytes:
    if number < 0x7F:
        return bytes((number,))
    encoded = bytearray((0x7F,))
    number -= 0x7F
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class Blocks:
    """Decodes the header blocks of one connection."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = hpack.Decoder(max_bytes)
        self._decoder.max_allowed_table_size = 4096  # until the other end has seen the settings
        self._known: dict[bytes, Fields] = {}

    def decode(self, block: bytes) -> Fields:
        """Return what a block says. Raises ValueError for one that cannot be decoded."""
        found = self._known.get(block)
        if found is not None:
            return found
        try:
            fields = dict(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError:
            return _OVERSIZED
        except hpack.HPACKError as error:
            raise ValueError(f"unreadable headers: {error}") from None
        found = _fields(fields)
        if not self._decoder.header_table.dynamic_entries and len(block) <= _KEPT_BYTES:
            if len(self._known) >= _KEPT_BLOCKS:
                self._known.clear()
            self._known[block] = found
        return found


def _fields(fields: dict[bytes, bytes]) -> Fields:
    status = fields.get(b":status")
    grpc_status = fields.get(b"grpc-status")
    return Fields(
        status=status.decode("latin-1") if status is not None else None,
        content_type=fields.get(b"content-type", b"").decode("latin-1"),
        grpc_status=_code(grpc_status) if grpc_status is not None else None,
        grpc_message=unquote(fields.get(b"grpc-message", b"").decode(errors="replace")),
    )


def _code(text: bytes) -> int:
    return int(text) if text.isdigit() else 2  # UNKNOWN
