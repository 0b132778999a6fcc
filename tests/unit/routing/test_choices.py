"""Who may be chosen and why the others may not; zones keep what they can carry."""

import math
from collections.abc import Mapping, Sequence

import pytest

from routing.balancing.least_request import LeastRequest
from routing.choices import Choices, spill
from routing.endpoint import Candidate, ModelLoads, Roster
from routing.fleet import ModelVersion
from routing.health.breaker import Breaker, BreakerSettings
from routing.health.ejection import EjectionSettings, Group
from routing.types import Server
from tests.unit.routing.building import NOW_S, drawn, route

KEY = ModelVersion("m", 1)


def candidate(
    name: str, zone: str | None = None, capacity: float = 1.0, rows: int = 0
) -> Candidate:
    roster = Roster()
    load = roster.add(Server(name, capacity=capacity, zone=zone))
    made = Candidate(ModelLoads("m", roster), load, slow_start_s=0.0, slow_since_s=-math.inf)
    made.model.rows[made.place] = rows
    return made


def opened(open_s: float = 5.0) -> Breaker:
    breaker = Breaker(BreakerSettings(open_min_s=open_s), lambda: 1.0)
    breaker.open(NOW_S)
    return breaker


def build(
    candidates: Sequence[Candidate],
    *,
    out: Mapping[str, str] | None = None,
    open_ones: Mapping[str, tuple[Breaker, ...]] | None = None,
    zone: str | None = None,
) -> Choices:
    return Choices.build(
        KEY,
        route(*(c.name for c in candidates)),
        epoch=1,
        loads=ModelLoads("m", Roster()),
        policy=LeastRequest(),
        group=Group(BreakerSettings(), EjectionSettings(), lambda: 0.0),
        candidates=candidates,
        reason=lambda key, server: (out or {}).get(server),
        circuits=lambda server: (open_ones or {}).get(server, ()),
        zone=zone,
    )


def anyone(candidate: Candidate, breakers: Sequence[Breaker]) -> bool:
    """No other worker is there."""
    return True


def names(candidates: Sequence[Candidate]) -> list[str]:
    return [c.name for c in candidates]


# --- who is out


def test_without_a_reason_everyone_may_be_chosen() -> None:
    choices = build([candidate("a"), candidate("b")])
    assert names(choices.candidates) == names(choices.all_candidates) == ["a", "b"]
    assert (choices.remote, choices.ejected, dict(choices.excluded)) == ((), (), {})
    assert (choices.holders, choices.probe_due_s) == (("a", "b"), math.inf)


def test_every_server_that_is_out_has_its_reason() -> None:
    choices = build(
        [candidate(name) for name in "abcd"],
        out={"a": "cordoned by an operator"},
        open_ones={"b": (opened(),)},
    )
    assert names(choices.candidates) == ["c", "d"]
    assert choices.excluded == {
        "a": "cordoned by an operator",
        "b": "ejected: its circuit is open",
    }


def test_what_an_operator_took_out_is_not_probed() -> None:
    choices = build([candidate("a"), candidate("b")], out={"a": "x"}, open_ones={"a": (opened(),)})
    assert choices.ejected == ()
    assert choices.excluded == {"a": "x"}


def test_a_probe_is_due_when_the_first_of_the_circuits_says_so() -> None:
    choices = build(
        [candidate(name) for name in "abc"],
        open_ones={"a": (opened(20.0), opened(9.0)), "b": (opened(30.0),)},
    )
    assert choices.probe_due_s == NOW_S + 9.0


def test_ejected_servers_are_better_than_none() -> None:
    choices = build(
        [candidate(name) for name in "abc"],
        out={"c": "cordoned by an operator"},
        open_ones={"a": (opened(),), "b": (opened(),)},
    )
    assert names(choices.candidates) == ["a", "b"]
    assert set(choices.excluded) == {"a", "b", "c"}  # and it is still told


# --- nobody


@pytest.mark.parametrize(
    ("out", "tried", "saturated"),
    [
        ({"a": "saturated with detached calls"}, (), True),
        ({"a": "saturated with detached calls", "b": "cordoned by an operator"}, (), True),
        ({"a": "saturated with detached calls"}, {"a"}, False),  # its bound is not what is missing
        ({"a": "cordoned by an operator"}, (), False),
        ({}, {"a", "b"}, False),
    ],
)
def test_a_refusal_tells_whether_a_bound_is_the_reason(
    out: dict[str, str], tried: set[str], saturated: bool
) -> None:
    refusal = build([candidate("a"), candidate("b")], out=out).nothing_left(tried)
    assert refusal.saturated is saturated
    assert str(refusal) == (
        "every server that holds the model is saturated"
        if saturated
        else "no server is ready to take the request"
    )


# --- who has the state of a sequence


def test_a_server_goes_on_with_what_it_has_begun_whatever_speaks_against_it() -> None:
    out = {"a": "cordoned by an operator", "b": "saturated with detached calls"}
    choices = build([candidate("a"), candidate("b", "z")], out=out, zone="y")
    for name in "ab":
        found = choices.holder(name, NOW_S)
        assert found is not None
        assert (found[0].name, found[1]) == (name, ())


def test_an_ejected_one_goes_on_too_and_proves_itself_when_its_time_is_over() -> None:
    breaker = opened()
    choices = build([candidate("b"), candidate("a")], open_ones={"a": (breaker,)})
    for later_s, probe in ((4.9, ()), (5.0, (breaker,))):
        found = choices.holder("a", NOW_S + later_s)
        assert found is not None
        assert (found[0].name, found[1]) == ("a", probe)


def test_a_server_without_the_version_has_no_state() -> None:
    choices = build([candidate("a"), candidate("b")], open_ones={"a": (opened(),)})
    assert choices.holder("c", NOW_S) is None


# --- probes


def test_an_ejected_server_is_due_for_one_probe_at_a_time() -> None:
    first, second = opened(5.0), opened(8.0)
    choices = build(
        [candidate("a"), candidate("b"), candidate("c")],
        open_ones={"a": (first,), "b": (second,)},
    )
    assert choices.probe_due(NOW_S + 4.9, anyone) is None
    due = choices.probe_due(NOW_S + 5.0, anyone)
    assert due is not None
    assert (due[0].name, due[1]) == ("a", (first,))
    first.begin_probe()
    assert choices.probe_due(NOW_S + 7.9, anyone) is None
    due = choices.probe_due(NOW_S + 8.0, anyone)
    assert due is not None
    assert due[0].name == "b"


# --- zones


def test_without_a_zone_all_are_alike() -> None:
    choices = build([candidate("a", "z"), candidate("b", "y")])
    assert (names(choices.candidates), choices.local_share) == (["a", "b"], 1.0)


def test_servers_of_the_own_zone_come_first() -> None:
    choices = build([candidate("a", "y"), candidate("b", "z"), candidate("c")], zone="z")
    assert (names(choices.candidates), names(choices.remote)) == (["b"], ["a", "c"])
    assert choices.local_share == 1.0
    assert names(choices.everyone()) == ["b", "a", "c"]


def test_without_a_server_in_the_zone_the_others_are_it() -> None:
    choices = build([candidate("a", "y"), candidate("b")], zone="z")
    assert (names(choices.candidates), choices.remote) == (["a", "b"], ())


@pytest.mark.parametrize(
    ("out", "share"),
    [
        ("", 1.0),
        ("a", 1.0),  # 3 of 4 are left, and a zone carries 1.4 times what it has
        ("ab", 0.7),
        ("abc", 0.35),
    ],
)
def test_a_zone_that_lost_capacity_keeps_what_it_can_carry(out: str, share: float) -> None:
    servers = [candidate(name, "z") for name in "abcd"] + [candidate("r", "y")]
    choices = build(servers, out=dict.fromkeys(out, "cordoned by an operator"), zone="z")
    assert choices.local_share == pytest.approx(share)


def test_capacity_counts_and_not_the_number_of_servers() -> None:
    servers = [candidate("a", "z", 7.0), candidate("b", "z", 1.0), candidate("r", "y")]
    choices = build(servers, open_ones={"a": (opened(),)}, zone="z")
    assert choices.local_share == pytest.approx(1.4 / 8)


def test_a_request_stays_in_its_zone() -> None:
    choices = build([candidate("a", "z"), candidate("r", "y")], zone="z")
    assert names(spill(choices, drawn(0.999, 0.0, 0.0), NOW_S)) == ["a"]


def test_what_the_zone_cannot_carry_leaves_it() -> None:
    servers = [candidate("a", "z"), candidate("b", "z"), candidate("r", "y")]
    choices = build(servers, out={"a": "cordoned by an operator"}, zone="z")
    assert names(spill(choices, drawn(0.69, 0.0, 0.0), NOW_S)) == ["b"]
    assert names(spill(choices, drawn(0.71), NOW_S)) == ["r"]


@pytest.mark.parametrize(
    ("here", "there", "goes_to"),
    [(3, 1, "a"), (4, 1, "r"), (1, 0, "a"), (2, 0, "r"), (9, 9, "a"), (0, 50, "a")],
)
def test_a_request_leaves_a_zone_that_is_more_than_twice_as_busy(
    here: int, there: int, goes_to: str
) -> None:
    choices = build([candidate("a", "z", rows=here), candidate("r", "y", rows=there)], zone="z")
    assert names(spill(choices, drawn(0.0, 0.0, 0.0), NOW_S)) == [goes_to]


def test_one_busy_server_of_the_zone_is_not_a_busy_zone() -> None:
    servers = [candidate("a", "z", rows=9), candidate("b", "z"), candidate("r", "y")]
    choices = build(servers, zone="z")
    drew_the_idle_one = spill(choices, drawn(0.0, 0.99, 0.0), NOW_S)
    assert names(drew_the_idle_one) == ["a", "b"]
