"""Where the JSON of a request ends, and the tensor bytes after it.

Decides how the header Inference-Header-Content-Length splits a body and which input gets which
bytes of the tail; refuses to know what is in either. Called by the infer request reader, and by the
edge for the header's text.
"""

from collections.abc import Sequence
from typing import Final

from gateway.faults import Fault

HEADER: Final = "Inference-Header-Content-Length"
_MAX_DIGITS: Final = 19  # what a 64-bit length may have; int() refuses very long texts anyhow


def parse_header_length(values: Sequence[str]) -> int | None:
    """Return the JSON length in bytes from all values of the header, None when it was not sent.

    ASCII digits only. A repeated header is accepted when every value is the same text, as HTTP
    allows for Content-Length (RFC 9110, 8.6), and refused otherwise.
    """
    if not values:
        return None
    text = values[0]
    if any(value != text for value in values):
        raise Fault.invalid(f"{HEADER} was sent {len(values)} times with different values")
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        shown = text[: 2 * _MAX_DIGITS]
        raise Fault.invalid(f"Unable to parse {HEADER}, got: {shown}")
    return int(text)


def split_body(body: bytes, header_length: int | None) -> tuple[bytes, memoryview]:
    """Return the JSON and what follows it; without the header all of the body is JSON."""
    if header_length is None or header_length == len(body):
        return body, memoryview(b"")
    if not 0 < header_length < len(body):
        raise Fault.invalid(
            f"inference header size should be in range (0, {len(body)}), got: {header_length} "
            f"(the header {HEADER})"
        )
    return body[:header_length], memoryview(body)[header_length:]


def framing_hint(body: bytes, header_length: int | None) -> str:
    """Return what to add to a JSON error that a wrong or missing header may have caused."""
    if header_length is not None:
        return f" (in the first {header_length} bytes, as {HEADER} says)"
    if not body:
        return f" (a body of raw tensor bytes needs the header {HEADER}: 0)"
    if b"binary_data_size" in body:
        return f" (a body with binary tensors needs the header {HEADER})"
    return ""


class BinaryTail:
    """The bytes after the JSON, handed out without copying, in the order of the inputs."""

    def __init__(self, tail: memoryview, model: str) -> None:
        self._tail = tail
        self._model = model
        self._offset = 0

    def take(self, size_bytes: int, name: str) -> memoryview:
        """Return the next `size_bytes` bytes, for the input of this name."""
        end = self._offset + size_bytes
        if end > len(self._tail):
            hint = "" if self._tail else f"; is the header {HEADER} missing?"
            raise Fault.invalid(
                f"unexpected size for input '{name}', expecting {end - len(self._tail)} "
                f"additional bytes for model '{self._model}'{hint}"
            )
        taken = self._tail[self._offset : end]
        self._offset = end
        return taken

    def check_used_up(self) -> None:
        """Refuse bytes that no input claimed; Triton's gRPC front end would ignore them."""
        left_bytes = len(self._tail) - self._offset
        if left_bytes:
            raise Fault.invalid(
                f"unexpected additional input data for model '{self._model}': "
                f"{left_bytes} bytes more than the inputs' binary_data_size add up to"
            )
