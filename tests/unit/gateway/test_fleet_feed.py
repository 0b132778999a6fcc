"""What the supervisor observes arrives in the workers as the same picture of the fleet."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from gateway.upstream.describe import Description, ModelBook
from gateway.upstream.keeper import Kept
from gateway.upstream.transport import Upstream
from gateway.workers.fleet_feed import ToldBook, ToldTable
from gateway.workers.fleet_mirror import FleetMirror
from gateway.workers.messages import Broken, Exiting, FleetCall, NotReady, Unreachable
from routing.fleet import FleetTable, ModelRow, ModelVersion
from routing.types import ModelSpec, Server, State, TensorSpec

KEY = ModelVersion("m", 1)


def spec(dims: int = 1) -> ModelSpec:
    return ModelSpec("m", 1, inputs=(TensorSpec("IN", "FP32", (dims,)),), outputs=())


class Channel:
    def __init__(self, state: str) -> None:
        self._state = state

    def state(self) -> str:
        return self._state


class Channels:
    """Stands for a pool of channels."""

    def __init__(self) -> None:
        self.channels = [Channel("ready"), Channel("idle")]

    def states(self) -> list[dict[str, Any]]:
        return [{"state": channel.state()} for channel in self.channels]


class Keeper:
    """Stands for what looks after connections."""

    def __init__(self) -> None:
        self.woken = 0
        self.servers: list[str] = []

    def add(self, kept: Kept) -> None:
        self.servers.append(kept.upstream.name)

    def remove(self, server: str) -> None:
        self.servers.remove(server)

    def wake(self) -> None:
        self.woken += 1


class Worker:
    """A worker's mirror, fed over pickle as over a link."""

    def __init__(self, table: ToldTable, book: ToldBook) -> None:
        pools = {name: Channels() for name in ("a", "b")}
        self.upstreams = {name: Upstream(name, pool) for name, pool in pools.items()}  # type: ignore[arg-type]
        self.keeper = Keeper()
        self.told: list[object] = []
        self.table: FleetTable = pickle.loads(pickle.dumps(table.plain()))
        self.book: ModelBook = pickle.loads(pickle.dumps(book.plain()))
        self.mirror = FleetMirror(
            self.table,
            self.book,
            self.keeper,  # type: ignore[arg-type]
            tell=self.told.append,
            clock=lambda: 50.0,
        )
        for upstream in self.upstreams.values():
            self.mirror.add(upstream, Kept(upstream, lambda: 0.0, None))

    def take(self, message: object) -> None:
        call = pickle.loads(pickle.dumps(message))
        assert isinstance(call, FleetCall)
        self.mirror.apply(call)


class Agent:
    """A supervisor's table and book, and workers that are told of every change."""

    def __init__(self) -> None:
        servers = [Server("a"), Server("b")]
        self.table = ToldTable(servers, quorum=0.5, recently_ready_s=300.0)
        self.book = ToldBook()
        self.workers: list[Worker] = []
        for part in (self.table, self.book):
            part.tell = self._tell

    def _tell(self, message: object) -> None:
        for worker in self.workers:
            worker.take(message)

    def join(self) -> Worker:
        self.workers.append(Worker(self.table, self.book))
        return self.workers[-1]

    def up(self, name: str, *, dims: int = 1, now_s: float = 10.0) -> None:
        self.book.learn(name, KEY, Description(spec(dims), {"name": "m"}, b"{}"))
        self.book.learn_extensions(name, ["statistics"])
        self.table.learn_spec(name, spec(dims), now_s=now_s)
        self.book.keep_only(name, frozenset({KEY}))
        self.table.observe_ready(name, {KEY}, asked_s=now_s, now_s=now_s)
        self.table.server_up(name, server_id=name, triton_version="2.51.0", now_s=now_s)


CHANGES: dict[str, Callable[[Agent], None]] = {
    "up": lambda agent: agent.up("a"),
    "both up": lambda agent: (agent.up("a"), agent.up("b"))[0],
    "another signature": lambda agent: (agent.up("a"), agent.up("b", dims=2))[0],
    "down": lambda agent: (agent.up("a"), agent.table.server_down("a", "gone", now_s=11.0))[0],
    "suspect": lambda agent: (agent.up("a"), agent.table.suspect("a", KEY, "no", now_s=11.0))[0],
    "unloaded": lambda agent: (
        agent.up("a"),
        agent.table.observe_ready("a", (), asked_s=12.0, now_s=12.0),
    )[0],
    "added": lambda agent: (
        agent.table.add(Server("c"), now_s=11.0),
        agent.up("c", now_s=12.0),
    )[0],
    "treated differently": lambda agent: (
        agent.up("a"),
        agent.table.update(Server("a", serve=("x",)), now_s=11.0),
    )[0],
    "leaving": lambda agent: (agent.up("a"), agent.table.leave("a", now_s=11.0))[0],
    "removed": lambda agent: (
        agent.up("a"),
        agent.table.leave("a", now_s=11.0),
        agent.table.remove("a", now_s=12.0),
        agent.book.forget("a"),
    )[0],
    "index": lambda agent: agent.table.observe_index(
        "b", {KEY: ModelRow(State.UNAVAILABLE, "broken")}, ["lazy"], now_s=11.0
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_picture_is_the_same(change: str, when: str) -> None:
    agent = Agent()
    agent.up("b", now_s=1.0)
    if when == "before":
        CHANGES[change](agent)
    worker = agent.join()
    if when == "meanwhile":
        CHANGES[change](agent)
    assert worker.mirror.snapshot == agent.table.snapshot
    for server in ("a", "b", "c"):
        assert worker.book.metadata(server, KEY) == agent.book.metadata(server, KEY)
        assert worker.book.config(server, KEY) == agent.book.config(server, KEY)
    assert worker.book.extensions() == agent.book.extensions()


def test_workers_know_which_servers_may_be_cancelled() -> None:
    agent = Agent()
    agent.up("a")
    worker = agent.join()
    agent.table.server_up("b", server_id="b", triton_version="2.58.0", now_s=11.0)
    assert not worker.upstreams["a"].cancel_safe
    assert worker.upstreams["b"].cancel_safe


def test_what_is_lost_with_a_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    agent.up("a")
    worker = agent.join()
    given_up: list[object] = []
    monkeypatch.setattr(Upstream, "give_up_detached", lambda _, channel: given_up.append(channel))
    agent.table.server_down("a", "gone", now_s=11.0)
    assert given_up == [worker.upstreams["a"].pool.channels[1]]  # the other one is alive
    assert worker.keeper.woken == 1


def test_what_a_request_ran_into_counts_here_at_once_and_is_reported() -> None:
    agent = Agent()
    agent.up("a")
    agent.up("b")
    worker = agent.join()
    worker.mirror.unreachable("a", "refused")
    worker.mirror.unreachable("a", "refused")
    worker.mirror.not_ready("b", KEY, "not found")
    worker.mirror.broken("b")
    assert not worker.mirror.snapshot.servers["a"].up
    assert worker.mirror.snapshot.models["m"].versions[1].servers == ()
    assert worker.told == [
        Unreachable("a", "refused"),
        NotReady("b", KEY, "not found"),
        Broken("b"),
    ]
    # It was this worker's own trouble: the supervisor reaches the server.
    agent.up("a", now_s=51.0)
    assert worker.mirror.snapshot.servers["a"].up


def test_a_server_that_goes_down_is_out_here_at_once_and_reported() -> None:
    agent = Agent()
    agent.up("a")
    worker = agent.join()
    worker.mirror.exiting("a", "Server exiting")
    assert not worker.mirror.snapshot.servers["a"].up
    assert worker.told == [Exiting("a", "Server exiting")]


async def test_the_first_pass_is_over_when_the_supervisor_says_so() -> None:
    worker = Agent().join()
    worker.mirror.first_pass_over()
    await worker.mirror.first_pass()
