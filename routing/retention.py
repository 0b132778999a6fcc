"""Which servers stay although the source they came from names them no more.

A source of servers (DNS, a file, a cluster) may flap, lag or answer with nothing. What it leaves
out is therefore not removed at once: a server that still answers is kept for a while, and when an
answer leaves out most of the servers, for as long as they answer. It refuses to know what a source
is and how it is known that a server answers. Called by discovery, for each answer and from time to
time.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

GONE_AFTER_S = 5.0
"""A server that is kept is let go when it has not answered for so long."""


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long servers outlive their being named.

    One is kept for `grace_s` seconds, while it answers. When more than `max_removed_share` (0 to 1)
    of the servers are missing together, they stay until they are named again or stop answering; 1
    switches that off.
    """

    grace_s: float
    max_removed_share: float


class Retention:
    """What one source leaves out, and since when."""

    def __init__(self, settings: RetentionSettings) -> None:
        self._settings = settings
        self._missing_s: dict[str, float] = {}
        self._silent_s: dict[str, float] = {}
        self._distrusted: set[str] = set()

    @property
    def distrusted(self) -> Collection[str]:
        """The servers that stay because too many were left out together."""
        return self._distrusted

    def review(
        self,
        members: Collection[str],
        named: Collection[str],
        *,
        answers: Callable[[str], bool],
        now_s: float,
    ) -> frozenset[str]:
        """Return those of `members` that the last answer does not name and that stay.

        `members` are the servers the source has at the moment, without those it wants removed at
        once; `answers` says whether one answers now.
        """
        missing = set(members) - set(named)
        self._forget_all_but(missing)
        for name in missing:
            self._missing_s.setdefault(name, now_s)
        if len(missing) > self._settings.max_removed_share * len(members):
            self._distrusted |= missing
        kept = frozenset(name for name in missing if self._stays(name, answers(name), now_s))
        self._distrusted &= kept
        return kept

    def _stays(self, name: str, answers: bool, now_s: float) -> bool:
        if answers:
            self._silent_s.pop(name, None)
        elif now_s - self._silent_s.setdefault(name, now_s) >= GONE_AFTER_S:
            return False
        if name in self._distrusted:
            return True
        return now_s - self._missing_s[name] < self._settings.grace_s

    def _forget_all_but(self, missing: Collection[str]) -> None:
        for known in (self._missing_s, self._silent_s):
            for name in [name for name in known if name not in missing]:
                del known[name]
        self._distrusted.intersection_update(missing)
