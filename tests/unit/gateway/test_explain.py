"""Explanations: who may be chosen with which share, who may not and why, and what happened."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.exchange import Exchange
from gateway.explain import KEPT_REQUESTS, Explainer
from gateway.faults import Fault, Kind, Origin
from gateway.names import UnknownName
from routing.aliases import Alias, Aliases, Arm, StickTo
from routing.classes import CRITICAL, SHEDDABLE
from routing.fleet import ModelRow, ModelRules, ModelVersion
from routing.priorities import Grant, Priorities
from routing.queueing import Queueing
from routing.sequences import Pin
from routing.steering import Block, Steering
from routing.types import Blame, Server, State
from tests.unit.gateway.fleets import TableFleet

READY = [("a", "m", 1), ("b", "m", 1)]


def explainer(fleet: TableFleet, *aliases: Alias) -> Explainer:
    fleet.aliases = Aliases({alias.name: alias for alias in aliases}, lambda: 0.0)
    return Explainer(fleet.view, fleet.clock)


def explained(fleet: TableFleet, version: int | None = None) -> dict[str, Any]:
    return explainer(fleet).model("m", version)


def asked(
    fleet: TableFleet,
    *servers: str,
    request_id: str = "r",
    route: str = "infer",
    fault: Fault | None = None,
    pin: Pin | None = None,
) -> Exchange:
    """A settled request that was sent to each of these servers in turn."""
    exchange = Exchange(request_id, "caller", route, fleet.clock, fleet.now_s)
    for server in servers:
        lease = fleet.pick("m", tried=[name for name in fleet.pool.loads if name != server])
        exchange.chose(lease)
        lease.release()
    exchange.model, exchange.version, exchange.status = "m", "1", 200
    exchange.fault, exchange.pin = fault, pin
    fleet.now_s += 2.0
    exchange.end()
    return exchange


def past(fleet: TableFleet, *exchanges: Exchange, request_id: str = "r") -> dict[str, Any]:
    """The explanation of a request after these were settled, seconds later."""
    found = explainer(fleet)
    for exchange in exchanges:
        found.observe(exchange)
    fleet.now_s += 3.0
    return found.request(request_id)


def shares(view: dict[str, Any]) -> dict[str, float]:
    return {row["server"]: row["share"] for row in view["candidates"]}


def test_candidates_have_share_work_and_latency() -> None:
    servers = [Server("a", capacity=3.0, zone="x"), Server("b"), Server("c")]
    fleet = TableFleet(READY, servers=servers)
    lease = fleet.pick("m")
    fleet.now_s += 0.25
    lease.settle(Blame.NOBODY, fleet.now_s)
    view = explained(fleet)
    assert view["candidates"] == [
        {
            "server": "a",
            "zone": "x",
            "capacity": 3.0,
            "share": 0.75,
            "starting_slowly": False,
            "work": 1.0,
            "limit": None,
            "latency_ms": 250.0,
            "ejected": None,
        },
        {
            "server": "b",
            "zone": None,
            "capacity": 1.0,
            "share": 0.25,
            "starting_slowly": False,
            "work": 0.0,
            "limit": None,
            "latency_ms": None,
            "ejected": None,
        },
    ]
    assert (view["version"], view["chosen_by"]) == (1, "the default version")
    assert (view["refused"], view["version_is_bad"]) == (None, False)


def test_a_slow_start_is_told_and_in_the_share() -> None:
    fleet = TableFleet(READY, slow_start_s=30.0)
    explained(fleet)
    fleet.has(("c", "m", 1))
    view = explained(fleet)
    assert [row["starting_slowly"] for row in view["candidates"]] == [False, False, True]
    assert shares(view) == {"a": 0.4762, "b": 0.4762, "c": 0.0476}


def test_shares_follow_the_zone() -> None:
    servers = [Server("a", zone="x"), Server("b", zone="x"), Server("c", zone="y")]
    fleet = TableFleet([*READY, ("c", "m", 1)], servers=servers, zone="x")
    assert shares(explained(fleet)) == {"a": 0.5, "b": 0.5, "c": 0.0}
    fleet.pool.steer(Steering(frozenset({"b"})))
    assert shares(explained(fleet)) == {"a": 0.7, "c": 0.3}


def test_everybody_else_has_a_reason() -> None:
    servers = [Server(name) for name in "abdefghi"] + [Server("c", serve=("other",))]
    ready = [(name, "m", 1) for name in "abcdefg"]
    fleet = TableFleet(ready, servers=servers)
    fleet.pool.steer(Steering(frozenset({"b"}), frozenset({Block("m", 1, "d")})))
    fleet.down("e", "connection refused")
    fleet.table.suspect("f", ModelVersion("m", 1), "not at ready state", now_s=fleet.now_s)
    fleet.fail("m", "g")
    fleet.has(("h", "other", 1))
    view = explained(fleet)
    assert list(shares(view)) == ["a"]
    assert view["excluded"] == {
        "b": "cordoned by an operator",
        "c": "the server's `serve` does not name this model",
        "d": "blocked by an operator",
        "e": "down: connection refused",
        "f": "UNKNOWN: not at ready state",
        "g": "ejected: its circuit is open",
        "h": "does not have this version",
        "i": "down: not probed yet",
    }


def test_what_is_down_and_cordoned_has_both_reasons() -> None:
    fleet = TableFleet(READY)
    fleet.down("b", "gone")
    fleet.pool.steer(Steering(frozenset({"b"})))
    assert explained(fleet)["excluded"]["b"] == "down: gone; cordoned by an operator"


def test_an_ejected_server_that_is_used_is_a_candidate() -> None:
    fleet = TableFleet(READY)
    fleet.fail("m", "a")
    fleet.pool.steer(Steering(frozenset({"b"})))
    (row,) = explained(fleet)["candidates"]
    assert (row["server"], row["ejected"]) == ("a", "ejected: its circuit is open")
    assert "a" not in explained(fleet)["excluded"]


def test_where_nobody_may_serve_the_answer_is_told() -> None:
    fleet = TableFleet(READY)
    fleet.pool.steer(Steering(blocks=frozenset({Block("m")})))
    view = explained(fleet)
    assert (view["candidates"], view["refused"]) == (
        [],
        {"outcome": "not_ready", "error": "no server is ready to take the request"},
    )


def test_a_version_that_is_nowhere_ready_is_explained_too() -> None:
    fleet = TableFleet(READY)
    failed = ModelRow(State.UNAVAILABLE, "no such file")
    fleet.index("c", {ModelVersion("m", 2): failed, ModelVersion("m", 3): ModelRow(State.LOADING)})
    fleet.has(("c", "other", 1))
    view = explained(fleet, 2)
    assert view["refused"] == {
        "outcome": "not_found",
        "error": "Request for unknown model: 'm' version 2 is not at ready state",
    }
    assert view["excluded"] == {
        "a": "does not have this version",
        "b": "does not have this version",
        "c": "UNAVAILABLE: no such file",
    }
    view = explained(fleet, 3)
    assert (view["refused"]["outcome"], view["excluded"]["c"]) == ("not_ready", "LOADING")


def test_when_no_version_is_ready_the_highest_is_explained() -> None:
    fleet = TableFleet([*READY, ("c", "m", 4)])
    for name in "abc":
        fleet.down(name, "gone")
    view = explained(fleet)
    assert (view["version"], view["chosen_by"]) == (
        4,
        "the highest known one, since none is ready",
    )
    assert view["refused"]["outcome"] == "not_ready"


def test_asking_about_what_is_not_ready_changes_no_choice() -> None:
    fleet = TableFleet(READY, slow_start_s=30.0)
    fleet.pick("m").release()
    for name in "ab":
        fleet.down(name, "gone")
    explained(fleet)
    fleet.now_s += 1.0
    fleet.has(*READY)
    assert not any(row["starting_slowly"] for row in explained(fleet)["candidates"])


@pytest.mark.parametrize(
    ("model", "version", "text"),
    [
        ("x", None, "there is no model 'x'; there is m"),
        ("m", 7, "the model 'm' has no version 7; it has 1"),
        ("idle", None, "the model 'idle' is not loaded; it is in the repository of a, b"),
    ],
)
def test_an_unknown_name_is_refused(model: str, version: int | None, text: str) -> None:
    fleet = TableFleet(READY)
    for name in "ab":
        fleet.index(name, {}, "idle")
    with pytest.raises(UnknownName) as caught:
        explainer(fleet).model(model, version)
    assert str(caught.value) == text


def test_a_configured_default_that_is_not_there_is_told() -> None:
    fleet = TableFleet(READY, rules={"m": ModelRules(default_version=9)})
    with pytest.raises(UnknownName, match="the model 'm' has no version 9; it has 1"):
        explained(fleet)


def test_before_any_server_has_answered_no_model_is_unknown() -> None:
    with pytest.raises(UnknownName, match="no server of the fleet has answered yet"):
        explained(TableFleet([]))


def test_a_past_request_tells_what_became_of_it() -> None:
    fleet = TableFleet([*READY, ("c", "m", 1)])
    fleet.pool.steer(Steering(frozenset({"b"})))
    view = past(fleet, asked(fleet, "a"))
    assert view == {
        "request_id": "r",
        "ended_s_ago": 3.0,
        "duration_ms": 2000.0,
        "model": "m",
        "version": "1",
        "outcome": "ok",
        "status": 200,
        "admission": None,
        "queued_ms": 0.0,
        "error": None,
        "attempts": [
            {
                "server": "a",
                "why": "the balancing policy chose among a, c",
                "candidates": ["a", "c"],
                "excluded": {"b": "cordoned by an operator"},
            }
        ],
    }


def test_a_later_change_does_not_change_what_happened() -> None:
    fleet = TableFleet(READY)
    exchange = asked(fleet, "a")
    fleet.pool.steer(Steering(frozenset({"a"})))
    assert past(fleet, exchange)["attempts"][0]["candidates"] == ["a", "b"]


def whys(fleet: TableFleet, servers: Iterable[str]) -> list[str]:
    return [attempt["why"] for attempt in past(fleet, asked(fleet, *servers))["attempts"]]


def test_the_server_of_each_attempt_has_its_reason() -> None:
    assert whys(TableFleet([*READY, ("c", "m", 1)]), "abc") == [
        "the balancing policy chose among a, b, c",
        "the balancing policy chose among b, c",
        "the only one left",
    ]
    assert whys(TableFleet(READY[:1]), "a") == ["the only candidate"]


def test_a_probe_of_an_ejected_server_is_called_one() -> None:
    fleet = TableFleet(READY)
    fleet.fail("m", "a")
    fleet.now_s += 60.0
    exchange = Exchange("r", "caller", "infer", fleet.clock, fleet.now_s)
    exchange.chose(fleet.pick("m"))
    exchange.end()
    (attempt,) = past(fleet, exchange)["attempts"]
    assert attempt["server"] == "a"
    assert attempt["why"].startswith("a probe: it was ejected")


def test_an_ejected_server_used_for_want_of_others_is_called_so() -> None:
    fleet = TableFleet(READY)
    fleet.fail("m", "a")
    fleet.pool.steer(Steering(frozenset({"b"})))
    assert whys(fleet, "a") == ["it was ejected, but so were all others"]


def test_the_server_of_a_sequence_is_where_it_began() -> None:
    fleet = TableFleet(READY)
    exchange = asked(fleet, "b", pin=Pin("m", 1, "b", "1"))
    (attempt,) = past(fleet, exchange)["attempts"]
    assert attempt["why"] == "its sequence began there: the server has its state"


def test_a_failure_is_told_with_its_detail() -> None:
    fleet = TableFleet(READY)
    fault = Fault(Kind.UNREACHABLE, "gone", origin=Origin.UPSTREAM, detail="10.0.0.5 refused")
    view = past(fleet, asked(fleet, "a", fault=fault))
    assert (view["outcome"], view["error"]) == ("unreachable", "10.0.0.5 refused")


def test_of_two_requests_with_one_id_the_later_is_explained() -> None:
    fleet = TableFleet(READY)
    view = past(fleet, asked(fleet, "a"), asked(fleet, "b"))
    assert [attempt["server"] for attempt in view["attempts"]] == ["b"]


def test_only_the_last_inference_requests_are_at_hand() -> None:
    fleet = TableFleet(READY)
    first, *others = [asked(fleet, request_id=str(at)) for at in range(KEPT_REQUESTS + 1)]
    again = asked(fleet, "b", request_id="1")
    assert past(fleet, first, *others, again, request_id="1")["attempts"]
    for request_id, extra in [("0", others[0]), ("x", asked(fleet, request_id="x", route="ready"))]:
        with pytest.raises(UnknownName, match="is not among the last 1000 inference requests"):
            past(fleet, first, *others, extra, request_id=request_id)


def test_the_body_of_a_failed_request_is_not_kept_alive() -> None:
    class Body:
        pass

    def failing(body: Body) -> None:
        raise Fault(Kind.FAILED, "the model raised", origin=Origin.UPSTREAM)

    fleet = TableFleet(READY)
    found = explainer(fleet)
    body = Body()
    alive = weakref.ref(body)
    try:
        failing(body)
    except Fault as fault:
        found.observe(asked(fleet, "a", fault=fault))
    del body
    gc.collect()
    assert alive() is None
    assert found.request("r")["error"] == "the model raised"


def test_an_alias_is_explained_by_its_arms_and_its_heaviest_one() -> None:
    fleet = TableFleet([("a", "m", 1), ("a", "m", 2)])
    arms = (Arm("m", 1, 3), Arm("m", None, 1))
    explained = explainer(fleet, Alias("m", arms, StickTo.HEADER, "X-User")).model("m", None)
    assert explained["alias"] == {
        "name": "m",
        "sticky": "X-User",
        "arms": [
            {"model": "m", "version": 1, "share": 0.75},
            {"model": "m", "version": None, "share": 0.25},
        ],
    }
    assert (explained["version"], explained["chosen_by"]) == (1, "the alias m")


def test_a_version_that_is_named_is_not_the_alias() -> None:
    fleet = TableFleet([("a", "m", 1), ("a", "m", 2)])
    explained = explainer(fleet, Alias("m", (Arm("m", 1, 1),))).model("m", 2)
    assert (explained["alias"], explained["version"]) == (None, 2)


# --- priority classes

GOLD = Priorities(
    tenants={"anonymous": Grant(), "acme": Grant(most=CRITICAL)},
    tiers={"gold": Grant(SHEDDABLE)},
    tier_of={"acme": "gold"},
    configured=True,
)


def test_the_class_and_level_of_a_tenant() -> None:
    fleet = TableFleet(READY)
    fleet.priorities, fleet.queues = GOLD, Queueing("dynamic_batching", levels=3)
    assert explainer(fleet).model("m", None, "acme")["priority"] == {
        "tenant": "acme",
        "tier": "gold",
        "class": "sheddable",
        "highest_class": "critical",
        "level": 3,
        "levels": 3,
        "queue_timeout_s": None,
        "unheeded": [],
    }
    anybody = explained(fleet)["priority"]
    assert (anybody["tenant"], anybody["class"], anybody["level"]) == ("anonymous", "standard", 2)
    assert anybody["highest_class"] == "standard"


def test_what_a_model_ignores_is_told() -> None:
    fleet = TableFleet(READY)
    fleet.priorities = GOLD
    found = explained(fleet)["priority"]
    assert (found["level"], found["levels"]) == (None, 0)
    assert found["unheeded"] == [
        "priority classes make no difference at the servers: no dynamic batching, so requests are"
        " served as they come"
    ]


def test_nothing_is_told_of_classes_where_there_are_none() -> None:
    assert explained(TableFleet(READY))["priority"] is None
    fleet = TableFleet([*READY, ("a", "idle", 1)])
    fleet.priorities = GOLD
    fleet.down("a", "refused")
    found = explainer(fleet).model("idle", 1)["priority"]
    assert (found["levels"], found["unheeded"]) == (None, [])  # nobody can be asked


def test_a_tenant_nobody_knows() -> None:
    fleet = TableFleet(READY)
    fleet.priorities = GOLD
    with pytest.raises(UnknownName, match="there is no tenant 'acm'; there are acme, anonymous"):
        explainer(fleet).model("m", None, "acm")
