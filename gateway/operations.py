"""One command to load or unload a model on several servers: what is asked, how far it is, its end.

Plain data without sockets and tasks, so that it can be shown, kept and handed on. Filled in by
`gateway.control`, read by the edge and the ops listener.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.faults import Fault, Kind

Command = Literal["load", "unload"]

KEPT_ENTRIES = 20
"""How many of the commands that have ended are shown."""


class NoPlacement(ValueError):
    """A command that names no servers, for a model that has no declared placement."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command as it is given.

    `servers` are names or shell patterns; none means the model's declared placement. `config` and
    `files` belong to a load (see `gateway.codec.control_request.LoadRequest`), `with_dependents`
    to an unload.
    """

    command: Command
    model: str
    servers: tuple[str, ...] = ()
    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    with_dependents: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command on one server; `kind` is None where it was carried out."""

    server: str
    kind: Kind | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a command: on each server, and as `/fleet` shows it."""

    outcomes: tuple[Outcome, ...]
    view: Mapping[str, Any]


@dataclass(slots=True)
class Step:
    """One server's part. `since` is when it came into this state, wall-clock time as ISO 8601."""

    since: str
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    fault: Fault | None = None

    def outcome(self, server: str) -> Outcome:
        """Return what became of it."""
        if self.fault is None:
            return Outcome(server)
        return Outcome(server, self.fault.kind, self.fault.message)


class Operation:
    """A command under way, or ended. `now` returns the wall-clock time as ISO 8601 text.

    Of the order it keeps no content: files may be large, and it is shown for a long time.
    """

    def __init__(
        self,
        operation_id: str,
        order: Order,
        servers: Iterable[str],
        *,
        by: str,
        now: Callable[[], str],
    ) -> None:
        self.id = operation_id
        self.warnings: list[str] = []
        self._about = {
            "command": order.command,
            "model": order.model,
            "by": by,
            "config": order.config is not None,
            "files": sorted(order.files),
        }
        self._now = now
        self._since = now()
        self._steps = {server: Step(self._since) for server in servers}

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers it concerns."""
        return tuple(self._steps)

    def begin(self, server: str) -> None:
        """Note that the server was told."""
        self._steps[server] = Step(self._now(), "running")

    def end(self, server: str, fault: Fault | None = None) -> None:
        """Note that the server has done it, or why not."""
        state: Literal["done", "failed"] = "failed" if fault else "done"
        self._steps[server] = Step(self._now(), state, fault and fault.without_frames())

    @property
    def state(self) -> str:
        """`running` until every server has ended, then `done` or `failed`."""
        states = {step.state for step in self._steps.values()}
        if states & {"waiting", "running"}:
            return "running"
        return "failed" if "failed" in states else "done"

    def report(self) -> Report:
        """Return what became of it."""
        outcomes = tuple(step.outcome(server) for server, step in self._steps.items())
        return Report(outcomes, self.view())

    def view(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "id": self.id,
            **self._about,
            "state": self.state,
            "since": self._since,
            "servers": [_step(server, step) for server, step in self._steps.items()],
            "warnings": list(self.warnings),
        }


class Operations:
    """All commands under way, and the last ones that have ended."""

    def __init__(self) -> None:
        self._running: dict[str, Operation] = {}
        self._ended: deque[Operation] = deque(maxlen=KEPT_ENTRIES)

    def add(self, operation: Operation) -> None:
        """Take up a command that begins."""
        self._running[operation.id] = operation

    def ended(self, operation: Operation) -> None:
        """Keep a command that has ended, for a while."""
        del self._running[operation.id]
        self._ended.append(operation)

    def find(self, operation_id: str) -> Operation | None:
        """Return a command by its id, None when it is not known (any more)."""
        return next((each for each in self._all() if each.id == operation_id), None)

    def view(self) -> list[dict[str, Any]]:
        """Return all of them as JSON, the newest last."""
        return [operation.view() for operation in self._all()]

    def _all(self) -> Iterable[Operation]:
        return [*self._ended, *self._running.values()]


def _step(server: str, step: Step) -> dict[str, Any]:
    error = {"error": step.fault.message} if step.fault else {}
    return {"server": server, "state": step.state, "since": step.since, **error}
