"""Parts of the API that need a key, as Triton restricts them (`--http-restricted-api`).

Comes before the check of the method, as with Triton. Called while a request's route is matched.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.faults import Fault, Kind, Origin


@dataclass(frozen=True, slots=True)
class Restriction:
    """Some categories of the API (`gateway.edge.routes.CATEGORIES`), their header and its key."""

    categories: tuple[str, ...]
    header: str
    key: str


class Restrictions:
    """All restrictions; a category is in at most one of them."""

    def __init__(self, restrictions: Iterable[Restriction]) -> None:
        self._by_category = {
            category: (restriction.header, restriction.key.encode())
            for restriction in restrictions
            for category in restriction.categories
        }

    def __bool__(self) -> bool:
        """Whether anything is restricted."""
        return bool(self._by_category)

    def check(self, headers: Mapping[str, str], category: str) -> None:
        """Raise Fault, in Triton's words, for a request without the key of its category."""
        restricted = self._by_category.get(category)
        if restricted is None:
            return
        header, key = restricted
        given = headers.get(header, "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, key):
            raise Fault(
                Kind.FORBIDDEN,
                f"This API is restricted, expecting header '{header}'",
                origin=Origin.CLIENT,
            )
