"""Triton's protobuf messages -> the JSON its HTTP front end writes.

That is protobuf's JSON mapping with the original field names and default values printed, except
that 64-bit integers are JSON numbers instead of text (seen on Triton 2.51, field for field).
"""

from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

_INT64 = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}


def to_json_object(message: Message) -> dict[str, Any]:
    """Return `message` as the JSON object Triton's HTTP front end would write."""
    plain = MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return _with_numbers(plain, cast(Descriptor, message.DESCRIPTOR))


def _with_numbers(plain: dict[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    for name, value in plain.items():
        field = descriptor.fields_by_name[name]
        if _is_map(field):
            entry = cast(Descriptor, field.message_type).fields_by_name["value"]
            plain[name] = {key: _value(item, entry) for key, item in value.items()}
        elif isinstance(value, list):
            plain[name] = [_value(item, field) for item in value]
        else:
            plain[name] = _value(value, field)
    return plain


def _value(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type in _INT64:
        return int(value)
    if field.message_type is not None:
        return _with_numbers(value, field.message_type)
    return value


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)
