"""Which of a caller's headers go to the servers, as gRPC metadata.

Only those an operator has allowed, under their names in lower case, and only values that gRPC can
carry: a header that cannot travel is left out and named in the request's log line, since it must
not fail a request that is fine without it. Called by the API listener.
"""

import re
from collections.abc import Iterable, Sequence

from multidict import CIMultiDictProxy

Metadata = tuple[tuple[str, str], ...]

_CARRIED = re.compile(r"[\x20-\x7e]*")  # gRPC over HTTP/2: ASCII-Value
_MAX_BYTES = 4096
"""Of all forwarded headers together. A Triton refuses calls with more than 8 KiB of metadata."""


class ForwardedHeaders:
    """The allow-list. `names` are compared without regard to case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: Sequence[str] = tuple(sorted({name.lower() for name in names}))

    def take(self, headers: CIMultiDictProxy[str]) -> tuple[Metadata, tuple[str, ...]]:
        """Return what goes on, and the names of those that were allowed but cannot travel."""
        taken: list[tuple[str, str]] = []
        dropped: list[str] = []
        room = _MAX_BYTES
        for name in self._names:
            for value in headers.getall(name, ()):
                trimmed = value.strip()
                size = len(name) + len(trimmed)
                if size <= room and _CARRIED.fullmatch(trimmed):
                    taken.append((name, trimmed))
                    room -= size
                else:
                    dropped.append(name)
        return tuple(taken), tuple(dropped)
