"""What must hold for every body, whatever it holds: see the name of each test."""

import json
import math
import struct
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gateway.codec.binary_tail import parse_header_length
from gateway.codec.compression import choose_encoding, pack, unpack
from gateway.codec.datatypes import DATATYPES
from gateway.codec.infer_reply import encode_reply
from gateway.codec.infer_request import InferDecoder
from gateway.codec.types import InferCall, InferReply, OutputTensor
from gateway.faults import Fault
from routing.types import ModelSpec, TensorSpec

SPEC = ModelSpec("m", 1, (TensorSpec("IN", "FP32", (-1, 2)),), ())
ORACLES = {
    "BOOL": np.dtype(bool),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"INT{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
}
EVERY_ORACLE = pytest.mark.parametrize("datatype", sorted(ORACLES))
SMALL, LARGE = 1 << 40, 0  # the body size from which simdjson is used

thorough = settings(max_examples=300, deadline=None)
brief = settings(max_examples=50, deadline=None)


def decoder(simd_from_bytes: int, *, strict_integers: bool = True) -> InferDecoder:
    return InferDecoder(
        max_tensor_bytes=1 << 20, strict_integers=strict_integers, simd_from_bytes=simd_from_bytes
    )


def outcome(
    body: bytes, header_length: int | None, simd_from_bytes: int, *, strict: bool = True
) -> str:
    """What decoding did, in a form that compares NaN equal to NaN. Anything but a Fault escapes."""
    try:
        call = decoder(simd_from_bytes, strict_integers=strict).decode(body, header_length, SPEC)
    except Fault as fault:
        return repr(fault)
    tensors = [
        (tensor.name, tensor.datatype, list(tensor.shape), bytes(tensor.raw))
        for tensor in call.inputs
    ]
    return repr((tensors, call.id, call.parameters, call.outputs, call.binary_default))


def check_same_outcome(body: bytes, header_length: int | None = None, *, strict=True) -> None:
    small = outcome(body, header_length, SMALL, strict=strict)
    assert outcome(body, header_length, LARGE, strict=strict) == small


# Tensors there and back.


@st.composite
def arrays(draw, datatype: str) -> np.ndarray:
    """Any tensor of the datatype: its bytes are arbitrary, NaN payloads and denormals included."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    dtype = ORACLES[datatype]
    count = math.prod(shape)
    if datatype == "BOOL":
        return draw(hnp.arrays(dtype, shape))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    return np.frombuffer(raw, dtype).reshape(shape)


def as_numbers(array: np.ndarray) -> list:
    """Python numbers of the same value; those of BF16 by way of FP32, which holds them all."""
    return (array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array).tolist()


def request(datatype: str, shape: tuple[int, ...], data: list) -> bytes:
    entry = {"name": "IN", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [entry]}).encode()


def first_raw(body: bytes, simd_from_bytes: int, header_length: int | None = None) -> bytes:
    return bytes(decoder(simd_from_bytes).decode(body, header_length, SPEC).inputs[0].raw)


def same_elements(raw: bytes, array: np.ndarray) -> bool:
    """Bit for bit, but for the payload of a NaN, which JSON cannot carry."""
    back = np.frombuffer(raw, array.dtype).reshape(array.shape)
    if array.dtype.kind in "biu":
        return bool((back == array).all())
    nan = np.isnan(array.astype(np.float64))
    return np.array_equal(np.isnan(back.astype(np.float64)), nan) and (
        back[~nan].tobytes() == array[~nan].tobytes()
    )


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # the oracle's own
@EVERY_ORACLE
@given(data=st.data())
@brief
def test_a_json_tensor_is_the_bytes_numpy_would_write(datatype, data) -> None:
    array = data.draw(arrays(datatype))
    for nested in (np.ravel(array), array, array[np.newaxis]):
        numbers = as_numbers(nested)
        body = request(datatype, array.shape, numbers if nested.shape else [numbers])
        for threshold in (SMALL, LARGE):
            assert same_elements(first_raw(body, threshold), array)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@given(values=st.lists(st.floats() | st.integers(-(2**63), 2**64 - 1), min_size=1))
@brief
def test_any_number_rounds_as_numpy_and_ml_dtypes_round_it(datatype, values) -> None:
    with np.errstate(over="ignore"):
        expected = np.array([float(value) for value in values]).astype(ORACLES[datatype])
    body = request(datatype, (len(values),), values)
    for threshold in (SMALL, LARGE):
        assert same_elements(first_raw(body, threshold), expected)


@pytest.mark.parametrize("datatype", [name for name in ORACLES if "INT" in name])
@given(values=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=5))
@brief
def test_an_integer_fits_or_is_refused_or_wraps_if_so_configured(datatype, values) -> None:
    dtype = ORACLES[datatype]
    limits, wide = np.iinfo(dtype), np.iinfo("i8" if dtype.kind == "i" else "u8")
    body = request(datatype, (len(values),), values)
    modulus = 1 << (8 * dtype.itemsize)
    wrapped = b"".join((v % modulus).to_bytes(dtype.itemsize, "little") for v in values)
    for threshold in (SMALL, LARGE):
        fits = all(limits.min <= value <= limits.max for value in values)
        wraps = all(wide.min <= value <= wide.max for value in values)
        strict = outcome(body, None, threshold)
        lenient = outcome(body, None, threshold, strict=False)
        assert (repr(wrapped) in strict, repr(wrapped) in lenient) == (fits, wraps)
        assert fits or "out of range" in strict
        assert wraps or "out of range" in lenient


@EVERY_ORACLE
@given(data=st.data())
@brief
def test_a_binary_tensor_comes_through_untouched(datatype, data) -> None:
    array = data.draw(arrays(datatype))
    raw = array.tobytes()
    entry = {
        "name": "IN",
        "datatype": datatype,
        "shape": array.shape,
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [entry]}).encode()
    assert first_raw(head + raw, SMALL, len(head)) == raw
    reply = InferReply("m", "1", [OutputTensor("OUT", datatype, array.shape, raw)])
    encoded = encode_reply(reply, InferCall("m", "1", [], binary_default=True))
    assert encoded.tail == [raw]
    assert encoded.binary == bool(raw)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@EVERY_ORACLE
@given(data=st.data())
@brief
def test_a_reply_as_json_reads_back_as_the_same_tensor(datatype, data) -> None:
    array = data.draw(arrays(datatype))
    reply = InferReply("m", "1", [OutputTensor("OUT", datatype, array.shape, array.tobytes())])
    (output,) = json.loads(encode_reply(reply, InferCall("m", "1", [])).head)["outputs"]
    assert output["shape"] == list(array.shape)
    body = request(datatype, array.shape, output["data"])
    assert same_elements(first_raw(body, SMALL), array)


def packed(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@given(strings=st.lists(st.text()))
@thorough
def test_strings_go_and_come_as_json_and_as_bytes(strings) -> None:
    raw = packed([string.encode() for string in strings])
    body = request("BYTES", (len(strings),), strings)
    assert first_raw(body, SMALL) == first_raw(body, LARGE) == raw
    reply = InferReply("m", "1", [OutputTensor("OUT", "BYTES", [len(strings)], raw)])
    head = encode_reply(reply, InferCall("m", "1", [])).head
    assert json.loads(head)["outputs"][0]["data"] == strings


@given(elements=st.lists(st.binary(max_size=9)), cut=st.integers(0, 8), count=st.integers(0, 5))
@thorough
def test_binary_strings_pass_only_if_lengths_and_shape_add_up(elements, cut, count) -> None:
    whole = packed(elements)
    raw = whole[: max(len(whole) - cut, 0)]
    entry = {
        "name": "IN",
        "datatype": "BYTES",
        "shape": [count],
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [entry]}).encode()
    result = outcome(head + raw, len(head), SMALL)
    assert result.startswith("Fault") == (raw != packed(elements[:count]) or len(elements) < count)


# Bodies that are anything: good ones, altered in a few places.

numbers = (
    st.integers(-3, 3)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400])
    | st.floats()
)
leaves = st.none() | st.booleans() | numbers | st.text(max_size=3) | st.just('[]"\\')
keys = st.sampled_from(
    ["id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data"]
) | st.sampled_from(["binary_data_size", "shared_memory_region", "sequence_id", "triton_x", "x"])
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def good_inputs(draw) -> dict:
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    entry = {"name": draw(st.sampled_from("ab")), "datatype": datatype, "shape": shape}
    if draw(st.integers(0, 4)) == 0:
        size = math.prod(shape) * (DATATYPES[datatype].size or 4)
        return entry | {"parameters": {"binary_data_size": size}}
    elements = {"BOOL": st.booleans(), "BYTES": st.text(max_size=3)}.get(datatype)
    if elements is None:
        elements = st.floats() | st.integers(0, 9) if "F" in datatype else st.integers(0, 9)
    data = draw(st.lists(elements, min_size=math.prod(shape), max_size=math.prod(shape)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data = draw(st.sampled_from([data, [data], [*data[:at], data[at:]], [*data, []]]))
    return entry | {"data": data}


good_requests = st.fixed_dictionaries(
    {"inputs": st.lists(good_inputs(), min_size=1, max_size=3)},
    optional={
        "id": st.text(max_size=3),
        "parameters": st.dictionaries(keys, st.booleans() | numbers, max_size=2)
        | st.fixed_dictionaries({}, optional={"priority": numbers, "binary_data_output": leaves}),
        "outputs": st.lists(
            st.fixed_dictionaries(
                {"name": st.text(max_size=2)},
                optional={
                    "parameters": st.fixed_dictionaries(
                        {}, optional={"binary_data": st.booleans(), "classification": numbers}
                    )
                },
            ),
            max_size=2,
        ),
    },
)


def alter(node: dict | list, draw) -> None:
    """Replace, remove or add one member, somewhere inside."""
    places = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not places:
        return
    place = draw(st.sampled_from(places))
    if isinstance(node[place], dict | list) and draw(st.integers(0, 3)):
        alter(node[place], draw)
    elif draw(st.booleans()):
        node[place] = draw(anything)
    elif isinstance(node, dict):
        del node[place]
        node[draw(keys)] = draw(anything)
    else:
        del node[place]


@st.composite
def request_texts(draw) -> str:
    document = draw(good_requests)
    for _ in range(draw(st.integers(0, 2))):
        alter(document, draw)
    text = json.dumps(document)
    if draw(st.integers(0, 3)) == 0:  # a key more, so that some come twice
        openings = [at + 1 for at, char in enumerate(text) if char == "{" and text[at + 1] != "}"]
        for at in openings and [draw(st.sampled_from(openings))]:
            member = f"{json.dumps(draw(keys))}: {json.dumps(draw(anything))}, "
            text = text[:at] + member + text[at:]
    return text


@given(
    text=request_texts(), tail=st.binary(max_size=24), framed=st.booleans(), strict=st.booleans()
)
@settings(thorough, max_examples=1500)
def test_both_parsers_give_one_verdict_and_never_anything_but_a_fault(
    text, tail, framed, strict
) -> None:
    head = text.encode("utf-8", "surrogatepass")
    if framed:
        check_same_outcome(head + tail, len(head), strict=strict)
    else:
        check_same_outcome(head, strict=strict)


@given(text=anything.map(json.dumps) | request_texts(), data=st.data())
@settings(thorough, max_examples=1000)
@example(text='{"inputs": []}', data=None)
def test_damaged_bodies_get_one_verdict_and_never_anything_but_a_fault(text, data) -> None:
    body = text.encode("utf-8", "surrogatepass")
    if data is not None:
        at = data.draw(st.integers(0, len(body)))
        tokens = [b"NaN", b"Inf", b"-Infinity", b"1e999", b"\\ud800", b"\xff", b"\0", b"[", b'"']
        inserted = data.draw(st.sampled_from(tokens) | st.binary(max_size=3))
        body = body[:at] + inserted + body[at + data.draw(st.integers(0, 2)) :]
    check_same_outcome(body)


@given(body=st.binary(), header_length=st.none() | st.integers(-1, 20))
@thorough
def test_arbitrary_bytes_never_raise_anything_but_a_fault(body, header_length) -> None:
    check_same_outcome(body, header_length)


@given(
    depth=st.integers(95, 105), ragged=st.booleans(), datatype=st.sampled_from(["FP32", "BYTES"])
)
@thorough
def test_the_nesting_limit_is_the_same_for_both_parsers(depth, ragged, datatype) -> None:
    leaf: object = "x" if datatype == "BYTES" else 1
    data: object = leaf
    for _ in range(depth):
        data = [leaf, data] if ragged else [data]
    body = request(datatype, (depth + 1 if ragged else 1,), data)
    check_same_outcome(body)
    assert ("(100)" in outcome(body, None, SMALL)) == (depth > 100)


# The other texts a client sends.


@given(values=st.lists(st.text(max_size=25) | st.integers().map(str), max_size=3))
@thorough
def test_a_header_length_is_a_number_or_a_fault(values) -> None:
    try:
        length = parse_header_length(values)
    except Fault as fault:
        assert "Inference-Header-Content-Length" in fault.message  # noqa: PT017
        return
    assert length is None if not values else {int(value) for value in values} == {length}


@given(
    head=st.binary(),
    tail=st.lists(st.binary()),
    encoding=st.sampled_from(["gzip", "deflate"]),
    spare=st.integers(-1, 2),
)
@thorough
def test_what_was_packed_unpacks_within_its_size(head, tail, encoding, spare) -> None:
    body = head + b"".join(tail)
    packed_body = pack(head, tail, encoding)
    if spare < 0 and body:
        with pytest.raises(Fault):
            unpack(packed_body, encoding, max_bytes=len(body) - 1)
    else:
        assert unpack(packed_body, encoding, max_bytes=len(body) + max(spare, 0)) == body


@given(body=st.binary(), at=st.integers(0, 40), flip=st.integers(1, 255), members=st.integers(1, 3))
@thorough
def test_a_damaged_packed_body_is_a_fault_or_still_the_body(body, at, flip, members) -> None:
    whole = bytearray(pack(body, [], "gzip") * members)
    if at < len(whole):
        whole[at] ^= flip
    try:
        result = unpack(bytes(whole), "gzip", max_bytes=1 << 20)
    except Fault:
        return
    assert result == zlib_members(bytes(whole))


def zlib_members(packed_body: bytes) -> bytes:
    """The plain way to read gzip members, for the few damages that leave one readable."""
    result = b""
    while packed_body:
        inflater = zlib.decompressobj(wbits=47)
        result += inflater.decompress(packed_body)
        packed_body = inflater.unused_data
    return result


@given(header=st.text() | st.lists(st.sampled_from(["gzip", ";q=", "0.5", ",", "br"])).map("".join))
@thorough
def test_any_accept_encoding_chooses_a_known_coding(header) -> None:
    assert choose_encoding(header) in (None, "gzip", "deflate")
