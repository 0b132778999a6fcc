"""The fleet as operators see it: every server, model and version, and why it is not in use."""

from gateway.ops.fleet_view import fleet_view
from gateway.ports import SourceStatus
from gateway.stores.memory import MemoryStore
from routing.fleet import ModelRow, ModelRules, ModelVersion
from routing.steering import Block, Steering
from routing.types import Server, State
from tests.unit.gateway.fleets import Sources, TableFleet

READY = [("a", "m", 1), ("b", "m", 1), ("b", "m", 2)]


def test_a_server_that_is_up() -> None:
    fleet = TableFleet(READY[:2], servers=[Server("a", capacity=2.0, zone="x"), Server("b")])
    failed = ModelRow(State.UNAVAILABLE, "no such file")
    fleet.index("a", {ModelVersion("m", 3): failed}, "only-on-disk")
    lease = fleet.pick("m")
    lease.detach()
    server, _ = fleet_view(fleet.view(), fleet.membership)["servers"]
    assert server == {
        "name": "a",
        "up": True,
        "source": "configuration",
        "leaving": False,
        "cordoned": False,
        "server_id": "id-a",
        "triton_version": "2.58.0",
        "capacity": 2.0,
        "zone": "x",
        "in_flight_calls": 1,
        "in_flight_rows": 1,
        "detached_calls": 1,
        "open_sequences": 0,
        "channels": [{"state": "ready", "in_flight": 0}, {"state": "idle", "in_flight": 0}],
        "models": [
            {"name": "m", "version": 1, "state": "READY"},
            {"name": "m", "version": 3, "state": "UNAVAILABLE", "reason": "no such file"},
        ],
        "not_loaded": ["only-on-disk"],
    }


def test_a_server_that_is_down_has_a_reason() -> None:
    fleet = TableFleet(READY)
    fleet.down("b", "connection refused")
    rows = fleet_view(fleet.view(), fleet.membership)["servers"]
    assert [(row["name"], row["up"], row.get("reason")) for row in rows] == [
        ("a", True, None),
        ("b", False, "connection refused"),
        ("c", False, "not probed yet"),
    ]
    assert rows[1]["models"][0] == {
        "name": "m",
        "version": 1,
        "state": "UNKNOWN",
        "reason": "connection refused",
    }


def test_versions_tell_where_they_are_and_where_they_were_taken_out() -> None:
    servers = [Server("a"), Server("b"), Server("c", pool="large")]
    rules = {"m": ModelRules(default_version=1), "n": ModelRules(pool="large")}
    fleet = TableFleet([*READY, ("b", "n", 1)], servers=servers, rules=rules)
    blocks = frozenset({Block("m", 2)})
    fleet.pool.steer(Steering(frozenset({"a"}), blocks))
    view = fleet_view(fleet.view(), fleet.membership)
    cordoned, blocked = "cordoned by an operator", "blocked by an operator"
    assert [row["cordoned"] for row in view["servers"]] == [True, False, False]
    other_pool = {"b": "the model is for the pool 'large'"}
    assert view["models"] == [
        {
            "name": "m",
            "default_version": 1,
            "versions": {
                "1": {
                    "servers": ["a", "b"],
                    "steered_off": {"a": cordoned},
                    "left_out": {},
                    "bad": False,
                },
                "2": {
                    "servers": ["b"],
                    "steered_off": {"b": blocked},
                    "left_out": {},
                    "bad": False,
                },
            },
        },
        {
            "name": "n",
            "default_version": None,
            "versions": {
                "1": {"servers": [], "steered_off": {}, "left_out": other_pool, "bad": False}
            },
        },
    ]


def test_open_breakers_and_bad_versions_are_listed() -> None:
    fleet = TableFleet(READY[:2])
    fleet.fail("m", "a")
    view = fleet_view(fleet.view(), fleet.membership)
    assert view["breakers"] == [{"of": "m/1", "server": "a", "circuit": "open"}]
    assert not view["models"][0]["versions"]["1"]["bad"]
    for _ in range(5):
        fleet.fail("m", "b")
    view = fleet_view(fleet.view(), fleet.membership)
    assert view["models"][0]["versions"]["1"]["bad"]


def test_what_is_wrong_with_servers_is_passed_on() -> None:
    fleet = TableFleet(READY)
    assert fleet_view(fleet.view(), fleet.membership)["findings"] == fleet.findings()


def test_open_sequences_are_counted_on_their_server() -> None:
    fleet = TableFleet(READY)
    fleet.sequences["b"] = 3
    rows = fleet_view(fleet.view(), fleet.membership)["servers"]
    assert [row["open_sequences"] for row in rows] == [0, 3, 0]


def test_the_store_says_why_it_is_down() -> None:
    class Down(MemoryStore):
        def down_reason(self) -> str | None:
            return "no answer"

    fleet = TableFleet(READY)
    assert fleet_view(fleet.view(), fleet.membership)["store"] == {"kind": "memory", "up": True}
    fleet.store = Down(fleet.clock, max_entries=1)
    shown = fleet_view(fleet.view(), fleet.membership)["store"]
    assert shown == {"kind": "memory", "up": False, "reason": "no answer"}


def test_sources_of_servers_are_listed_with_what_is_wrong_with_them() -> None:
    fleet = TableFleet(READY)
    finding = {"server": "", "severity": "warning", "message": "fails", "fix": "mend it"}
    membership = Sources(
        SourceStatus("dns", False, "SERVFAIL", 86400.0, servers=2, kept=["b"]),
        SourceStatus("file", True, None, None, servers=0, kept=[]),
        findings=[finding],
    )
    view = fleet_view(fleet.view(), membership)
    assert view["sources"] == [
        {
            "name": "dns",
            "up": False,
            "problem": "SERVFAIL",
            "last_success": "1970-01-02T00:00:00+00:00",
            "servers": 2,
            "kept": ["b"],
        },
        {"name": "file", "up": True, "last_success": None, "servers": 0, "kept": []},
    ]
    assert view["findings"][0] == finding
