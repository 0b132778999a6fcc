"""How a name that is not there is told: together with the ones that are.

Raised by what carries out operators' questions and commands, shown by the ops listener.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self

MOST_LISTED = 20
_CLOSE = 0.5


class UnknownName(Exception):
    """A name that stands for nothing; the message says which names do."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> Self:
        """Build it for a `kind` ("server", "model", ...) of which there are `known`."""
        names = sorted(known)
        if not names:
            return cls(f"there is no {kind} '{name}', nor any other")
        if len(names) > MOST_LISTED:
            close = get_close_matches(name, names, n=MOST_LISTED, cutoff=_CLOSE)
            names = [*close, *(other for other in names if other not in close)]
        verb = "is" if len(names) == 1 else "are"
        return cls(f"there is no {kind} '{name}'; there {verb} {listed(names)}")

    @classmethod
    def version(cls, model: str, version: int, known: Iterable[int]) -> Self:
        """Build it for a version of a model that has the `known` ones."""
        versions = listed(map(str, sorted(known)))
        return cls(f"the model '{model}' has no version {version}; it has {versions}")


def listed(names: Iterable[str]) -> str:
    """Return the first names in one line, and how many more there are."""
    every = list(names)
    shown = ", ".join(every[:MOST_LISTED])
    left = len(every) - MOST_LISTED
    return f"{shown} and {left} more" if left > 0 else shown
