"""What of two answers has to be equal, and in what respects they are not.

Statuses first: where they differ nothing else is comparable. Then the error text, or the document,
the bytes after it, and how the body is framed, labelled and encoded. Headers only a gateway sends
(`Server`, `X-Request-Id`, `Server-Timing`) and the letter case of headers are nobody's business.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.raw_http import Answer

HEADER_LENGTH = "inference-header-content-length"
JSON = "application/json"

View = Callable[[Any], Any]
"""Reduces a document to what two servers can agree on."""


@dataclass(frozen=True)
class Reading:
    """An answer taken apart; `document` is None for an empty body, a list for events."""

    status: int
    document: Any
    tail: bytes
    content_type: str
    encoding: str
    head_bytes: int | None
    closes: bool

    @property
    def text(self) -> str:
        """The error text, empty where there is none. Of a stream it is that of the first event."""
        events = self.document if isinstance(self.document, list) else [self.document]
        first = events[0] if events else None
        text = first.get("error", "") if isinstance(first, dict) else ""
        assert isinstance(text, str)
        return text


def read(answer: Answer) -> Reading:
    """Take an answer apart; its own framing has to be consistent."""
    encoding = answer.headers.get("content-encoding", "")
    body = zlib.decompress(answer.body, 32 + zlib.MAX_WBITS) if encoding else answer.body
    announced = answer.headers.get(HEADER_LENGTH)
    split = len(body) if announced is None else int(announced)
    document = _events(body) if _is_stream(answer) else _document(body[:split])
    tail = body[split:]
    assert len(tail) == _binary_bytes(document), "the outputs' sizes add up to the tail"
    return Reading(
        status=answer.status,
        document=document,
        tail=tail,
        content_type=answer.headers.get("content-type", ""),
        encoding=encoding,
        head_bytes=None if announced is None else split,
        closes=answer.closes,
    )


def mismatches(triton: Reading, gateway: Reading, view: View, *, error_types: bool) -> set[str]:
    """Name the respects in which the gateway's answer is not Triton's."""
    if triton.status != gateway.status or not triton.status:
        return {"status"}
    found = {name: one != other for name, one, other in _respects(triton, gateway, view)}
    found["content type"] = triton.content_type != gateway.content_type
    if triton.status >= 400 or triton.document is None:
        found["content type"] &= error_types
    return {name for name, differs in found.items() if differs}


def _respects(triton: Reading, gateway: Reading, view: View) -> Iterator[tuple[str, Any, Any]]:
    yield "connection", triton.closes, gateway.closes
    if triton.status >= 400:
        yield "text", triton.text, gateway.text
        return
    yield "document", exact(view(triton.document)), exact(view(gateway.document))
    yield "tail", triton.tail, gateway.tail
    yield "framing", triton.head_bytes is None, gateway.head_bytes is None
    yield "encoding", triton.encoding, gateway.encoding


def exact(document: Any) -> Any:
    """Make documents comparable without blurring them: 1, 1.0 and true differ, NaN equals NaN."""
    match document:
        case dict():
            return {key: exact(value) for key, value in document.items()}
        case list():
            return [exact(value) for value in document]
        case float() if math.isnan(document):
            return "float", "NaN"
        case float():
            return "float", struct.pack("<d", document)
        case _:
            return type(document).__name__, document


def _document(text: bytes) -> Any:
    # Triton passes bytes on that are not UTF-8; surrogates keep them apart.
    return json.loads(text.decode(errors="surrogateescape")) if text else None


def _is_stream(answer: Answer) -> bool:
    return answer.headers.get("content-type", "").startswith("text/event-stream")


def _events(body: bytes) -> list[Any] | None:
    events = body.split(b"\n\n")
    assert events.pop() == b"", "every event ends with an empty line"
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [_document(event.removeprefix(b"data: ")) for event in events] or None


def _binary_bytes(document: Any) -> int:
    outputs = document.get("outputs", []) if isinstance(document, dict) else []
    sizes = [output.get("parameters", {}).get("binary_data_size", 0) for output in outputs]
    return sum(sizes)
