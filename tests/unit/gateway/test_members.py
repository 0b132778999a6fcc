"""Which events the sets of servers of several sources come to."""

import pickle
from dataclasses import dataclass

import pytest

from gateway.members import Event, Members, ServerAdded, ServerChanged, ServerRemoved, Twice


@dataclass(frozen=True)
class Described:
    name: str
    grpc: str = ""
    capacity: float = 1.0

    @classmethod
    def of(cls, name: str, **values: object) -> "Described":
        return cls(name, **{"grpc": f"{name}:8001", **values})  # type: ignore[arg-type]


A, B, C = map(Described.of, "abc")


@pytest.fixture
def events() -> list[Event[Described]]:
    return []


@pytest.fixture
def members(events: list[Event[Described]]) -> Members[Described]:
    return Members(events.append, same_connection=lambda one, other: one.grpc == other.grpc)


def test_what_comes_and_what_goes(members, events) -> None:
    members.set_source("s", [A, B])
    members.set_source("s", [B, C])
    assert events == [
        ServerAdded("s", A),
        ServerAdded("s", B),
        ServerRemoved("a"),
        ServerAdded("s", C),
    ]


def test_the_same_set_again_is_no_event(members, events) -> None:
    members.set_source("s", [A, B])
    del events[:]
    members.set_source("s", [B, A])
    assert events == []


def test_sources_do_not_touch_each_other(members, events) -> None:
    members.set_source("s", [A])
    members.set_source("t", [B])
    del events[:]
    members.set_source("t", [])
    assert events == [ServerRemoved("b")]
    assert (members.source_of("a"), members.source_of("b")) == ("s", None)


def test_another_share_is_a_change_and_another_address_a_new_server(members, events) -> None:
    members.set_source("s", [A, B])
    del events[:]
    larger, moved = Described.of("a", capacity=4.0), Described.of("b", grpc="elsewhere:1")
    members.set_source("s", [larger, moved])
    assert events == [
        ServerChanged("s", larger),
        ServerRemoved("b"),
        ServerAdded("s", moved),
    ]


@pytest.mark.parametrize("double", [Described.of("a", grpc="x:1"), Described("x", A.grpc)])
def test_a_name_or_address_that_is_there_already_is_left_out(members, events, double) -> None:
    members.set_source("s", [A])
    members.set_source("t", [double, B])
    assert events == [ServerAdded("s", A), ServerAdded("t", B)]
    assert list(members.twice()) == [Twice("t", double.name, "a", "s")]


def test_who_is_there_already_stays_although_an_earlier_source_wants_it_now(
    members, events
) -> None:
    members.set_source("s", [])
    members.set_source("t", [A])
    members.set_source("s", [Described("other", A.grpc)])
    assert events == [ServerAdded("t", A)]
    assert list(members.twice()) == [Twice("s", "other", "a", "t")]


def test_the_double_takes_over_when_the_first_goes(members, events) -> None:
    other = Described("other", A.grpc)
    members.set_source("s", [A])
    members.set_source("t", [other])
    del events[:]
    members.set_source("s", [])
    assert events == [ServerRemoved("a"), ServerAdded("t", other)]
    assert not members.twice()


def test_what_was_seen_to_already_is_no_event(members, events) -> None:
    members.set_source("s", [A])
    members.note({"s": [B], "t": [C]})
    assert events == [ServerAdded("s", A)]
    assert members.replay() == [ServerAdded("s", B), ServerAdded("t", C)]
    members.set_source("s", [])
    assert events[1:] == [ServerRemoved("b")]


def test_a_preview_changes_nothing(members, events) -> None:
    members.set_source("s", [A])
    assert members.preview({"s": [], "t": [B]}) == [ServerAdded("t", B)]
    assert members.replay() == [ServerAdded("s", A)]
    assert list(members.sources()) == ["s"]


def test_somebody_new_is_brought_up_to_date(members) -> None:
    members.set_source("s", [A])
    members.set_source("t", [B, Described("x", A.grpc)])
    assert members.replay() == [ServerAdded("s", A), ServerAdded("t", B)]
    assert list(members.of_source("t")) == ["b", "x"]
    assert members.of_source("unheard-of") == {}


@pytest.mark.parametrize("event", [ServerAdded("s", A), ServerChanged("s", A), ServerRemoved("a")])
def test_events_travel_between_processes(event) -> None:
    assert pickle.loads(pickle.dumps(event)) == event


def test_events_with_a_server_of_the_configuration_travel_between_processes(tmp_path) -> None:
    from config.loader import load_text

    text = "servers: [{name: a, grpc: 'a:1', metadata: {key: {env: KEY}}, tls: {}}]"
    [server] = load_text(text, str(tmp_path / "f.yaml")).servers
    event = ServerAdded("configuration", server)
    assert pickle.loads(pickle.dumps(event)) == event
