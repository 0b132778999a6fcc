"""The fleet as the supervisor observes it, told to every worker.

The prober's table and book, with each observation passed on as it is made, and the roster, with
each server that comes or goes. A copy of a table or book is a plain one: what receives it passes
nothing on. Built by wiring.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gateway.members import Event, S
from gateway.upstream.describe import Description, ModelBook
from gateway.upstream.roster import Roster, W
from gateway.workers.messages import FleetCall
from routing.fleet import FleetTable, ModelRow, ModelVersion
from routing.types import ModelSpec, Server

Tell = Callable[[object], None]
T = TypeVar("T")


def nobody(_: object) -> None:
    """Tell nobody: what is observed before a configuration is in force is nobody's affair."""


class ToldRoster(Roster[S, W]):
    """A roster whose events are told."""

    tell: Tell = staticmethod(nobody)

    def apply(self, event: Event[S]) -> None:
        """Tell and carry out one event: workers need the parts before anything is routed there."""
        self.tell(event)
        super().apply(event)


class ToldTable(FleetTable):
    """A fleet table whose observations are told."""

    tell: Tell = staticmethod(nobody)

    def plain(self) -> FleetTable:
        """Return a copy for another process: it must be pickled before the next observation."""
        return _plain(self, FleetTable)

    def _pass_on(self, method: str, *arguments: Any, **named: Any) -> None:
        self.tell(FleetCall(False, method, arguments, named))

    def add(self, server: Server, *, now_s: float) -> None:
        """Note and tell it."""
        super().add(server, now_s=now_s)
        self._pass_on("add", server, now_s=now_s)

    def update(self, server: Server, *, now_s: float) -> None:
        """Note and tell it."""
        super().update(server, now_s=now_s)
        self._pass_on("update", server, now_s=now_s)

    def leave(self, name: str, *, now_s: float) -> None:
        """Note and tell it."""
        super().leave(name, now_s=now_s)
        self._pass_on("leave", name, now_s=now_s)

    def remove(self, name: str, *, now_s: float) -> None:
        """Note and tell it."""
        super().remove(name, now_s=now_s)
        self._pass_on("remove", name, now_s=now_s)

    def server_up(self, name: str, *, server_id: str, triton_version: str, now_s: float) -> None:
        """Note and tell it."""
        named = {"server_id": server_id, "triton_version": triton_version, "now_s": now_s}
        super().server_up(name, server_id=server_id, triton_version=triton_version, now_s=now_s)
        self._pass_on("server_up", name, **named)

    def server_down(self, name: str, reason: str, *, now_s: float) -> None:
        """Note and tell it."""
        super().server_down(name, reason, now_s=now_s)
        self._pass_on("server_down", name, reason, now_s=now_s)

    def observe_ready(
        self, name: str, ready: Iterable[ModelVersion], *, asked_s: float, now_s: float
    ) -> None:
        """Note and tell it."""
        keys = frozenset(ready)
        super().observe_ready(name, keys, asked_s=asked_s, now_s=now_s)
        self._pass_on("observe_ready", name, keys, asked_s=asked_s, now_s=now_s)

    def observe_index(
        self,
        name: str,
        index: Mapping[ModelVersion, ModelRow],
        unloaded: Iterable[str],
        *,
        now_s: float,
    ) -> None:
        """Note and tell it."""
        names = frozenset(unloaded)
        super().observe_index(name, index, names, now_s=now_s)
        self._pass_on("observe_index", name, dict(index), names, now_s=now_s)

    def learn_spec(self, name: str, spec: ModelSpec, *, now_s: float) -> None:
        """Note and tell it."""
        super().learn_spec(name, spec, now_s=now_s)
        self._pass_on("learn_spec", name, spec, now_s=now_s)

    def suspect(self, name: str, key: ModelVersion, reason: str, *, now_s: float) -> None:
        """Note and tell it."""
        super().suspect(name, key, reason, now_s=now_s)
        self._pass_on("suspect", name, key, reason, now_s=now_s)


class ToldBook(ModelBook):
    """A model book whose entries are told."""

    tell: Tell = staticmethod(nobody)

    def plain(self) -> ModelBook:
        """Return a copy for another process: it must be pickled before the next entry."""
        return _plain(self, ModelBook)

    def learn(self, server: str, key: ModelVersion, description: Description) -> None:
        """Keep and tell it."""
        super().learn(server, key, description)
        self.tell(FleetCall(True, "learn", (server, key, description), {}))

    def keep_only(self, server: str, ready: frozenset[ModelVersion]) -> None:
        """Forget the others, and tell it."""
        super().keep_only(server, ready)
        self.tell(FleetCall(True, "keep_only", (server, ready), {}))

    def forget(self, server: str) -> None:
        """Forget the server, and tell it."""
        super().forget(server)
        self.tell(FleetCall(True, "forget", (server,), {}))

    def learn_extensions(self, server: str, extensions: Sequence[str]) -> None:
        """Keep and tell it."""
        super().learn_extensions(server, extensions)
        self.tell(FleetCall(True, "learn_extensions", (server, tuple(extensions)), {}))


def _plain(told: object, kind: type[T]) -> T:
    plain = kind.__new__(kind)
    plain.__dict__.update({name: value for name, value in vars(told).items() if name != "tell"})
    return plain
