"""How far a source is believed, and what is told about it."""

from dataclasses import dataclass, field

import pytest

from gateway.discovery.feed import Feed, Surroundings
from gateway.discovery.source import Answer
from gateway.members import Members, ServerAdded, ServerRemoved
from routing.retention import RetentionSettings

GRACE_S = 30.0


@dataclass(frozen=True)
class Server:
    name: str
    capacity: float = 1.0

    @property
    def grpc(self) -> str:
        return f"{self.name}:8001"


class Named:
    fix = "mend the source"
    retry_s = (1.0, 1.0)

    def answers(self):  # type: ignore[no-untyped-def]
        raise AssertionError


@dataclass
class World:
    """A feed, and everything it sees and does."""

    share: float = 0.5
    events: list = field(default_factory=list)  # type: ignore[type-arg]
    down: set[str] = field(default_factory=set)
    unusable: dict[str, str] = field(default_factory=dict)
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        self.members: Members[Server] = Members(self.events.append, same_connection=lambda *_: True)
        around = Surroundings(
            self.members,
            answers=lambda name: name not in self.down,
            unusable=lambda server: self.unusable.get(server.name),
            clock=lambda: self.now_s,
            wall_clock=lambda: self.now_s + 1e9,
        )
        self.feed = Feed("s", Named(), RetentionSettings(GRACE_S, self.share), around)

    def answer(self, *names: str, leaving: str = "", problem: str | None = None) -> list[str]:
        servers = [Server(name) for name in names]
        self.feed.accept(Answer(servers, frozenset(leaving), problem))
        return self.names()

    def names(self) -> list[str]:
        return sorted(self.members.of_source("s"))

    def after(self, passed_s: float) -> list[str]:
        self.now_s += passed_s
        self.feed.review()
        return self.names()

    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.feed.findings()]


@pytest.fixture
def world() -> World:
    return World()


def test_before_the_first_answer_there_is_nothing_to_do(world: World) -> None:
    assert world.after(1000) == []
    assert not world.feed.tried.is_set()
    assert not world.feed.status().up


def test_an_answer_becomes_servers(world: World) -> None:
    assert world.answer("a", "b") == ["a", "b"]
    assert world.events == [ServerAdded("s", Server("a")), ServerAdded("s", Server("b"))]
    status = world.feed.status()
    assert (status.up, status.servers, status.answered_s) == (True, 2, 1e9 + 1000)
    assert world.codes() == []


def test_a_failure_changes_nothing_and_is_told_with_its_fix(world: World) -> None:
    world.answer("a", "b")
    world.now_s += 5
    world.feed.fail("no answer")
    assert world.after(1_000_000) == ["a", "b"]
    [finding] = world.feed.findings()
    assert finding["message"] == "the source 's' fails, its last good answer stands: no answer"
    assert finding["fix"] == "mend the source"
    status = world.feed.status()
    assert (status.up, status.problem, status.answered_s) == (False, "no answer", 1e9 + 1000)
    world.answer("a", "b")
    assert world.codes() == []


def test_a_source_that_has_never_answered_has_no_servers(world: World) -> None:
    world.feed.fail("no answer")
    assert world.feed.tried.is_set()
    [finding] = world.feed.findings()
    assert finding["message"] == "the source 's' fails, it has no servers: no answer"


def test_what_is_left_out_goes_after_its_grace(world: World) -> None:
    world.answer("a", "b", "c")
    assert world.answer("a", "b") == ["a", "b", "c"]
    assert world.feed.status().kept == ["c"]
    assert world.after(GRACE_S) == ["a", "b"]
    assert world.events[-1] == ServerRemoved("c")
    assert world.codes() == []


def test_an_empty_answer_keeps_all_and_is_told(world: World) -> None:
    world.answer("a", "b")
    assert world.answer() == ["a", "b"]
    assert world.after(1_000_000) == ["a", "b"]
    [finding] = world.feed.findings()
    assert finding["code"] == "discovery-distrusted"
    assert "no longer names a, b" in finding["message"]
    world.down = {"a", "b"}
    world.after(0)
    assert world.after(10) == []
    assert world.codes() == ["discovery-empty"]


def test_what_leaves_by_the_sources_own_word_goes_at_once(world: World) -> None:
    """And does not count among what went missing."""
    world.answer("a", "b", "c")
    assert world.answer("a", "b", "c", leaving="abc") == []
    assert world.events[-3:] == [ServerRemoved("a"), ServerRemoved("b"), ServerRemoved("c")]


def test_a_part_of_an_answer_is_taken_over_and_the_rest_told(world: World) -> None:
    world.answer("a")
    assert world.answer("a", "b", problem="half of it") == ["a", "b"]
    assert world.codes() == ["discovery-failed"]
    assert world.feed.status().answered_s == 1e9 + 1000


def test_a_server_that_cannot_be_connected_to_is_left_out_and_told(world: World) -> None:
    world.unusable = {"b": "no such file"}
    assert world.answer("a", "b") == ["a"]
    [finding] = world.feed.findings()
    assert finding["message"] == "b cannot be used: no such file"
    world.unusable = {}
    assert world.answer("a", "b") == ["a", "b"]


def test_a_change_that_cannot_be_used_leaves_the_server_as_it_was(world: World) -> None:
    world.answer("a")
    world.unusable = {"a": "no such file"}
    world.feed.accept(Answer([Server("a", capacity=4.0)]))
    assert world.members.of_source("s") == {"a": Server("a")}
    assert world.codes() == ["discovery-unusable"]


def test_a_server_that_is_there_already_is_told(world: World) -> None:
    world.members.set_source("configuration", [Server("a")])
    world.answer("a", "b")
    [finding] = world.feed.findings()
    assert "a of the source 's' is left out" in finding["message"]
    assert world.members.source_of("a") == "configuration"
