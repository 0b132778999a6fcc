"""One comparison: what is sent, and in what the answers may differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conformance.comparison import View
from tests.conformance.differences import Difference


def whole(document: Any) -> Any:
    """Compare documents as they are."""
    return document


@dataclass(frozen=True)
class Case:
    """A request, in the pieces it is sent in.

    `field` is what an error of the gateway has to name. `fault` says what is wrong with the gateway
    as long as it is. `server` is the Triton it is compared with. The content types of errors are
    only compared on demand.
    """

    id: str
    request: bytes | tuple[bytes, ...]
    differs: Difference | None = None
    field: str = ""
    fault: str = ""
    view: View = whole
    server: str = "a"
    error_types: bool = False

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The request as it is to be written."""
        return self.request if isinstance(self.request, tuple) else (self.request,)
