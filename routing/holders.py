"""The servers behind one model version, kept up to date server by server.

`FleetTable` tells a `Holders` what each server says of the version; nothing of the other servers is
looked at again for that. It decides which servers take its requests: those that have it ready, are
meant for it, and report the signature that most of them report.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from routing.signatures import majority
from routing.types import ModelSpec


class Said(NamedTuple):
    """What one server says of one version.

    `known` means that the server lists it at all, `serves` that it would take requests for it now,
    `lost` that it would if it were not down; `spec` is its signature if it serves it, and
    `not_used` why it gets no requests all the same.
    """

    known: bool = False
    loading: bool = False
    serves: bool = False
    lost: bool = False
    spec: ModelSpec | None = None
    not_used: str | None = None


NOTHING = Said()


@dataclass(slots=True)
class Holders:
    """Servers are numbers here, ascending in the order of the table: so is `ready`."""

    ready: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    specs: dict[int, ModelSpec] = field(default_factory=dict)
    not_used: dict[int, str] = field(default_factory=dict)
    known: int = 0
    loading: int = 0
    _said: dict[int, Said] = field(default_factory=dict)
    _alike: Counter[int] = field(default_factory=Counter)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without `_alike`, whose identities mean nothing there."""
        ready, specs, said = self.ready, self.specs, self._said
        return _arrived, (ready, self.lost, specs, self.not_used, self.known, self.loading, said)

    def note(self, server: int, said: Said) -> bool:
        """Take over what a server says now; return whether that makes a difference to requests.

        Equal signatures must be one object.
        """
        before, was_known = self._said.get(server, NOTHING), self.known > 0
        if said == before:
            return False
        self._said[server] = said
        if said is NOTHING:
            del self._said[server]
        self.known += said.known - before.known
        self.loading += said.loading - before.loading
        if before.serves:
            self._drop(server)
        if said.serves:
            self._add(server, said)
        if said.lost:
            self.lost.add(server)
        else:
            self.lost.discard(server)
        return said._replace(known=True) != before._replace(known=was_known)

    def _drop(self, server: int) -> None:
        if self.not_used.pop(server, None) is not None:
            return
        del self.ready[bisect_left(self.ready, server)]
        spec = self.specs.pop(server, None)
        if spec is not None:
            self._alike[id(spec)] -= 1
            if not self._alike[id(spec)]:
                del self._alike[id(spec)]

    def _add(self, server: int, said: Said) -> None:
        if said.not_used is not None:
            self.not_used[server] = said.not_used
            return
        insort(self.ready, server)
        if said.spec is not None:
            self.specs[server] = said.spec
            self._alike[id(said.spec)] += 1

    def signatures(self, names: Mapping[int, str]) -> dict[str, ModelSpec]:
        """Return the signature each ready server reports, in the order of the configuration."""
        return {names[number]: self.specs[number] for number in self.ready if number in self.specs}

    def agree(self) -> bool:
        """Whether no two ready servers report different signatures."""
        return len(self._alike) <= 1

    def used(
        self, names: Mapping[int, str], *, compatible: bool
    ) -> tuple[ModelSpec | None, tuple[str, ...], dict[str, str]]:
        """Return the signature that counts, who is used, and why others that serve it are not.

        With `compatible` a server's signature may differ from that one.
        """
        left_out = {names[number]: reason for number, reason in self.not_used.items()}
        ready = tuple(map(names.__getitem__, self.ready))
        if self.agree():
            return next(iter(self.specs.values()), None), ready, left_out
        spec, differing = majority(self.signatures(names))
        if compatible:
            return spec, ready, left_out
        ready = tuple(name for name in ready if name not in differing)
        return spec, ready, left_out | differing


def _arrived(*parts: Any) -> Holders:
    holders = Holders(*parts)
    holders._alike.update(map(id, holders.specs.values()))
    return holders
