import gzip
import tracemalloc
import zlib

import pytest

from gateway.codec.compression import choose_encoding, pack, unpack
from gateway.faults import Fault, Kind

TEXT = b'{"inputs": []}' * 20


def raw_deflate(text: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(text) + packer.flush()


def fault_of(body: bytes, encoding: str, max_bytes: int = 1 << 20) -> Fault:
    with pytest.raises(Fault) as caught:
        unpack(body, encoding, max_bytes=max_bytes)
    return caught.value


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("packer", [gzip.compress, zlib.compress])
def test_gzip_and_zlib_are_told_apart_by_content(packer, encoding) -> None:
    assert unpack(packer(TEXT), encoding, max_bytes=len(TEXT)) == TEXT


@pytest.mark.parametrize("encoding", ["", "identity"])
def test_identity_is_the_body_itself(encoding) -> None:
    assert unpack(TEXT, encoding, max_bytes=len(TEXT)) is TEXT


@pytest.mark.parametrize("encoding", ["br", "GZIP", "gzip, deflate", "x-gzip", "zstd", " gzip"])
def test_any_other_coding_is_unsupported(encoding) -> None:
    fault = fault_of(gzip.compress(TEXT), encoding)
    assert (fault.kind, fault.message) == (Kind.UNSUPPORTED, "Unsupported compression type")


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (TEXT, "identity"),
        (gzip.compress(TEXT), "gzip"),
        (zlib.compress(TEXT), "deflate"),
        (gzip.compress(TEXT[:-1]) + gzip.compress(TEXT[-1:]), "gzip"),
    ],
)
def test_the_result_is_never_longer_than_allowed(body, encoding) -> None:
    assert unpack(body, encoding, max_bytes=len(TEXT)) == TEXT
    fault = fault_of(body, encoding, len(TEXT) - 1)
    assert fault.kind is Kind.TOO_LARGE
    assert str(len(TEXT) - 1) in fault.message


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(20 << 20))
    tracemalloc.start()
    try:
        assert fault_of(bomb, "gzip", 1000).kind is Kind.TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x1f",
        TEXT,
        raw_deflate(TEXT),
        gzip.compress(TEXT)[:-1],
        zlib.compress(TEXT)[:-5],
        gzip.compress(TEXT)[:40] + b"\xff" * 9 + gzip.compress(TEXT)[49:],
        gzip.compress(TEXT) + b"x",
        gzip.compress(TEXT) + b"\x1f",
        gzip.compress(TEXT) + b"\0\0",
        gzip.compress(TEXT) + zlib.compress(TEXT),
        zlib.compress(TEXT) + zlib.compress(TEXT),
        zlib.compress(TEXT) + gzip.compress(TEXT),
    ],
)
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_damaged_data_is_refused(body, encoding) -> None:
    fault = fault_of(body, encoding)
    assert fault.kind is Kind.INVALID
    assert fault.message.startswith("failed to decompress the request body: ")


def test_members_may_end_anywhere_in_the_feed() -> None:
    """Among them: exactly where one feed ends, and one byte before."""
    stored = gzip.compress(bytes(1000), 0)
    filler = (1 << 16) - len(stored)
    for pad in (filler, filler - 1):
        first = _member_of_size(pad)
        body = first + stored + gzip.compress(TEXT)
        assert unpack(body, "gzip", max_bytes=1 << 20) == gzip.decompress(body)


def _member_of_size(size: int) -> bytes:
    member = gzip.compress(bytes(size - 23), 0)
    assert len(member) == size
    return member


def test_too_many_members_are_refused() -> None:
    assert unpack(gzip.compress(b"") * 1024, "gzip", max_bytes=10) == b""
    assert "members" in fault_of(gzip.compress(b"") * 1025, "gzip", 10).message


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("identity, gzip", None),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip; q=0.5 , deflate ;q=0.4", "gzip"),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0", None),
        ("gzip;q=0, deflate;q=0.001", "deflate"),
        ("*", None),
        ("br", None),
        ("*;q=1, gzip;q=0.1", "gzip"),
        ("GZIP, x-gzip", None),
        ("gzip;q=high, deflate;q=0.2", "deflate"),
        ("gzip;q=, deflate;q=0.2", "deflate"),
        ("gzip;q=nan, deflate;q=0.2", "deflate"),
        ("gzip;level=1", None),
        (",, ;q=1,gzip,", "gzip"),
    ],
)
def test_the_reply_takes_the_coding_of_highest_weight(header, chosen) -> None:
    assert choose_encoding(header) == chosen


@pytest.mark.parametrize("tail", [[], [b"", b"a" * 1000, bytes(range(256))]])
def test_a_reply_is_packed_as_one_body(tail) -> None:
    body = TEXT + b"".join(tail)
    assert gzip.decompress(pack(TEXT, tail, "gzip")) == body
    assert zlib.decompress(pack(TEXT, tail, "deflate")) == body
