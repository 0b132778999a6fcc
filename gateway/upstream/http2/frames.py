"""HTTP/2 frames: their bytes, and nothing about what they mean for a call (RFC 9113)."""

import struct
from collections.abc import Iterator
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH = 1, 2
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 3, 4, 5


class ErrorCode(IntEnum):
    """Why a stream or a connection ended; unknown codes count as INTERNAL_ERROR."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode":
        return cls.INTERNAL_ERROR


_HEADER = struct.Struct(">BHBBI")
_UINT32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


def header(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the nine bytes in front of a frame's payload."""
    return _HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return header(len(payload), kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    pairs = b"".join(_SETTING.pack(*pair) for pair in values.items())
    return frame(SETTINGS, 0, 0, pairs)


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the settings in a payload."""
    return _SETTING.iter_unpack(payload[: len(payload) // 6 * 6])


def window_update(stream: int, amount: int) -> bytes:
    """Return the frame that lets the other end send `amount` bytes more."""
    return frame(WINDOW_UPDATE, 0, stream, _UINT32.pack(amount))


def reset(stream: int, code: ErrorCode) -> bytes:
    """Return the frame that ends a stream from this side."""
    return frame(RST_STREAM, 0, stream, _UINT32.pack(code))


def uint31(payload: bytes, at: int = 0) -> int:
    """Read a stream id or a window increment, whose highest bit is reserved."""
    return int.from_bytes(payload[at : at + 4], "big") & MAX_WINDOW


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of a DATA or HEADERS frame without padding and priority.

    Raises ValueError for padding that is longer than the payload.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - payload[0] if payload else -1
    if flags & PRIORITY:
        start += 5
    if start > end:
        raise ValueError("padding beyond the end of a frame")
    return payload[start:end]
