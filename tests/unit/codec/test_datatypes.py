import pytest

from gateway.codec.datatypes import DATATYPES, element_size


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("BOOL", 1),
        ("UINT8", 1),
        ("UINT16", 2),
        ("UINT32", 4),
        ("UINT64", 8),
        ("INT8", 1),
        ("INT16", 2),
        ("INT32", 4),
        ("INT64", 8),
        ("FP16", 2),
        ("FP32", 4),
        ("FP64", 8),
        ("BF16", 2),
        ("BYTES", None),
    ],
)
def test_each_wire_datatype_has_its_element_size(name: str, size: int | None) -> None:
    assert element_size(name) == size


def test_there_are_no_other_datatypes() -> None:
    assert len(DATATYPES) == 14
    with pytest.raises(KeyError):
        element_size("fp32")


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=lambda datatype: datatype.name)
def test_storage_is_little_endian_and_as_wide_as_an_element(datatype) -> None:
    assert datatype.storage.itemsize == (datatype.size or 0)
    assert datatype.storage.str[0] in "<|"
