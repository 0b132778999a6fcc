import pytest

from gateway.codec.raw_request import decode_raw
from gateway.faults import Fault, Kind
from routing.types import ModelSpec, TensorSpec


def spec(dims: tuple[int, ...], datatype: str = "FP32", max_batch_size: int = 0) -> ModelSpec:
    return ModelSpec("m", 3, (TensorSpec("IN", datatype, dims),), (), max_batch_size)


def refusal(body: bytes, model: ModelSpec, max_tensor_bytes: int = 1 << 20) -> str:
    with pytest.raises(Fault) as caught:
        decode_raw(body, model, max_tensor_bytes=max_tensor_bytes)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "size", "shape"),
    [
        ((3,), 0, 12, [3]),
        ((3,), 8, 12, [1, 3]),
        ((-1,), 0, 20, [5]),
        ((-1,), 1, 0, [1, 0]),
        ((2, -1, 3), 0, 48, [2, 2, 3]),
        ((0, -1), 0, 0, [0, 0]),
        ((), 0, 4, []),
    ],
)
def test_the_shape_follows_from_the_configuration_and_the_length(
    dims, max_batch_size, size, shape
) -> None:
    body = bytes(size)
    call = decode_raw(body, spec(dims, "FP32", max_batch_size), max_tensor_bytes=1 << 20)
    (only,) = call.inputs
    assert (only.name, only.datatype, only.shape) == ("IN", "FP32", shape)
    assert only.raw is body
    assert (call.model, call.version, call.id, call.parameters) == ("m", "3", "", {})
    assert call.outputs == []
    assert call.wants_binary("anything")


@pytest.mark.parametrize(("dims", "max_batch_size"), [((1,), 0), ((1, 1), 0), ((1,), 4), ((), 1)])
def test_one_string_gets_its_length_in_front(dims, max_batch_size) -> None:
    call = decode_raw(b"text", spec(dims, "BYTES", max_batch_size), max_tensor_bytes=100)
    assert call.inputs[0].raw == b"\x04\0\0\0text"
    assert call.inputs[0].shape == ([1, *dims] if max_batch_size else list(dims))


@pytest.mark.parametrize("dims", [(-1,), (2,), (0,), (1, -1)])
def test_strings_of_another_number_are_refused(dims) -> None:
    assert refusal(b"text", spec(dims, "BYTES")) == (
        "For BYTE datatype raw input 'IN', the model must have input shape [1]"
    )


@pytest.mark.parametrize(
    ("dims", "size", "expected"),
    [((3,), 11, 12), ((-1,), 7, 4), ((2, -1), 15, 8), ((0, -1), 4, 0), ((3,), 0, 12)],
)
def test_bytes_that_do_not_fill_the_shape_are_refused(dims, size, expected) -> None:
    assert refusal(bytes(size), spec(dims)) == (
        f"input byte size mismatch for input 'raw_input' for model 'm'. "
        f"Expected {expected}, got {size}"
    )


@pytest.mark.parametrize("inputs", [0, 2])
def test_a_model_without_exactly_one_input_has_no_raw_form(inputs) -> None:
    model = ModelSpec("m", 1, (TensorSpec("IN", "FP32", (1,)),) * inputs, ())
    assert refusal(bytes(4), model) == (
        "Raw request must only have 1 input (found 1) to be deduced but got "
        f"{inputs} inputs in 'm' model configuration"
    )


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_two_variable_dims_cannot_be_deduced(datatype) -> None:
    assert "The shape of the raw input 'IN' can not be deduced" in refusal(
        bytes(4), spec((-1, -1), datatype)
    )


def test_a_raw_tensor_has_the_same_limit_as_any_other() -> None:
    assert "byte size overflow" in refusal(bytes(40), spec((-1,)), max_tensor_bytes=36)
