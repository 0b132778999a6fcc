"""Content codings of infer bodies, in and out: gzip and deflate.

Decides which codings are understood, how large an unpacked body may become, and which coding an
Accept-Encoding header asks for, by the rules of Triton's HTTP front end. Refuses to know what is
inside a body. Called by the edge.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.faults import Fault

ACCEPTED: Final = "gzip, deflate"
"""For the Accept-Encoding header of the answer to an unsupported coding."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_AUTO_WINDOW: Final = 32 + zlib.MAX_WBITS  # zlib tells gzip and zlib apart by their headers
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL: Final = 1  # replies are packed on the event loop; higher levels cost more than they save
_FEED_BYTES: Final = 1 << 16
_MAX_MEMBERS: Final = 1024  # of a gzip body; tiny ones cost far more time than bytes


def unpack(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Undo a request's Content-Encoding; `max_bytes` bounds the result.

    Names are exact and case-sensitive; gzip labelled deflate and the reverse are understood, as in
    Triton. Unlike Triton, damaged data and data after its end are refused.
    """
    if encoding in ("", "identity"):
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    if encoding not in _WINDOWS:
        raise Fault.unsupported("Unsupported compression type")
    try:
        return b"".join(_inflated(body, max_bytes))
    except zlib.error as error:
        raise _damaged(str(error)) from error


def _inflated(body: bytes, max_bytes: int) -> Iterator[bytes]:
    left_bytes = max_bytes
    members = 1
    inflater = zlib.decompressobj(_AUTO_WINDOW)
    for start in range(0, len(body), _FEED_BYTES):
        packed = body[start : start + _FEED_BYTES]
        while packed:
            if inflater.eof:
                members += 1
                _check_next_member(body, packed, members)
                inflater = zlib.decompressobj(_AUTO_WINDOW)
            piece = inflater.decompress(packed, left_bytes + 1)
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise _too_large(max_bytes)
            yield piece
            packed = inflater.unused_data
    if not inflater.eof:
        raise _damaged("it is cut off")


def _check_next_member(body: bytes, rest: bytes, members: int) -> None:
    """Allow another gzip member after the end of one (RFC 1952, 2.2); nothing else may follow."""
    if not (body.startswith(_GZIP_MAGIC) and rest.startswith(_GZIP_MAGIC[:1])):
        raise _damaged("other data follows its end")
    if members > _MAX_MEMBERS:
        raise _damaged(f"it has more than {_MAX_MEMBERS} gzip members")


def _damaged(reason: str) -> Fault:
    return Fault.invalid(f"failed to decompress the request body: {reason}")


def _too_large(max_bytes: int) -> Fault:
    return Fault.too_large(
        f"request body exceeds the maximum allowed size of {max_bytes} bytes when decompressed"
    )


def choose_encoding(accept_encoding: str | None) -> str | None:
    """Return the coding for a reply, None for identity.

    The highest q among identity, gzip and deflate, the first of equals; q=0 excludes. `*`, other
    codings and entries with a malformed q are passed over. Names are case-sensitive.
    """
    best, best_weight = "identity", 0.0
    for entry in (accept_encoding or "").split(","):
        name, _, parameter = (part.strip() for part in entry.partition(";"))
        weight = _weight(parameter)
        if weight > best_weight and (name in _WINDOWS or name == "identity"):
            best, best_weight = name, weight
    return best if best in _WINDOWS else None


def _weight(parameter: str) -> float:
    if not parameter:
        return 1.0
    key, _, text = parameter.partition("=")
    try:
        return float(text) if key == "q" else 0.0
    except ValueError:
        return 0.0


def pack(head: bytes, tail: Sequence[bytes], encoding: str) -> bytes:
    """Compress a reply's pieces as one body; `encoding` is what `choose_encoding` returned."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    pieces = [packer.compress(piece) for piece in (head, *tail)]
    return b"".join([*pieces, packer.flush()])
