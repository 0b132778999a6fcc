"""What operators read: 80 columns whatever the names, nothing a terminal would obey."""

import copy
from typing import Any

import pytest

from gateway.cli.explain import model_text, request_text
from gateway.cli.fleet import as_text
from gateway.cli.reload import as_text as plan_text
from gateway.cli.text import WIDTH, plain, table, wrapped

EVIL = "\x1b[31mred\x07\r\nnext\u202e line"
LONG = "n" * 300


def server(name: str, **fields: Any) -> dict[str, Any]:
    usual = {
        "up": True,
        "cordoned": False,
        "leaving": False,
        "triton_version": "2.58.0",
        "in_flight_calls": 0,
        "detached_calls": 0,
        "channels": [{"state": "ready"}] * 2,
        "models": [],
    }
    return {"name": name, **usual, **fields}


def version(*servers: str, **fields: Any) -> dict[str, Any]:
    return {
        "servers": list(servers), "steered_off": {}, "left_out": {}, "bad": False, **fields,
    }  # fmt: skip


VIEW: dict[str, Any] = {
    "not_ready_reason": None,
    "servers": [
        server("a", in_flight_calls=12, detached_calls=3),
        server("b", cordoned=True, channels=[{"state": "ready"}, {"state": "transient_failure"}]),
        server("c", up=False, cordoned=True, triton_version="", reason="connection refused"),
        server(
            "d",
            models=[
                {"name": "m", "version": 2, "state": "UNAVAILABLE", "reason": "no such file"},
                {"name": "m", "version": 1, "state": "READY"},
            ],
        ),
    ],
    "models": [
        {
            "name": "m",
            "default_version": 1,
            "versions": {
                "1": version("a", "b", "d", steered_off={"b": "cordoned by an operator"}),
                "2": version(left_out={"a": "its signature differs from the majority's"}),
                "10": version("a", steered_off={"a": "blocked by an operator"}, bad=True),
            },
        },
    ],
    "store": {"kind": "memory", "up": True},
    "admission": {"mode": "enforce", "queued": {"n": {"critical": 0}}},
    "findings": [
        {
            "server": "c",
            "severity": "error",
            "message": "nothing listens there",
            "fix": "start it",
        },
        {
            "server": "",
            "severity": "warning",
            "message": "two names for one server",
            "fix": "remove one",
        },
        {"server": "a", "severity": "info", "message": "all is well", "fix": "nothing"},
    ],
    "breakers": [
        {"of": "m/1", "server": "a", "circuit": "half_open"},
        {"of": "server", "server": "d", "circuit": "open"},
    ],
    "model_control": {"operations": [], "replay": None},
    "workers": [
        {
            "slot": 0,
            "pid": 4711,
            "generation": 1,
            "state": "ready",
            "since_s": 61.4,
            "requests_in_flight": 5,
            "resident_bytes": 99 * 2**20,
        },
        {
            "slot": 1,
            "pid": 12,
            "generation": 3,
            "state": "starting",
            "since_s": 0.6,
            "requests_in_flight": 0,
            "resident_bytes": 0,
        },
    ],
    "steering": {
        "cordoned": ["b", "c"],
        "blocks": [
            {"model": "m", "version": 10, "server": "a"},
            {"model": "old", "version": None, "server": None},
        ],
        "disabled": [
            {
                "feature": "limits",
                "by": "ann",
                "reason": "the limits of acme are wrong",
                "since": "2026-01-07T10:00:00+00:00",
                "until": "2026-01-07T10:30:00+00:00",
            },
        ],
        "survives_restart": True,
        "audit": [
            {"at": f"2026-01-0{day}", "by": "ann", "command": "cordon", "server": "b", "changed": 1}
            for day in range(1, 8)
        ],
    },
    "config": {
        "hash": "0f3a5b7c9d1e",
        "loaded_at": "2026-01-08T10:00:00+00:00",
        "needs_restart": ["api.port", "ops.tls"],
        "last_error": {
            "at": "2026-01-08T11:00:00+00:00",
            "by": "SIGHUP",
            "problems": ["gateway.yaml:2: loging: unknown key - did you mean 'logging'?"],
        },
        "draining": [{"hash": "112233445566", "requests": 2, "calls": 1}],
    },
}

FLEET_TEXT = """\
Servers up: 3 of 4; models: 1
Configuration 0f3a5b7c9d1e, loaded 2026-01-08T10:00:00+00:00
  still under way with 112233445566: requests: 2, calls on servers: 1
  waiting for a restart: api.port, ops.tls
  REFUSED at 2026-01-08T11:00:00+00:00 (by SIGHUP):
    gateway.yaml:2: loging: unknown key - did you mean 'logging'?

SWITCHED OFF
  limits until 2026-01-07T10:30:00+00:00, by ann: the limits of acme are wrong

SERVER  STATE           TRITON  IN FLIGHT  DETACHED  CHANNELS
a       up              2.58.0         12         3  2 ready
b       cordoned        2.58.0          0         0  1 ready, 1 failing
c       down, cordoned  -               0         0  2 ready
d       up              2.58.0          0         0  2 ready
  c is down: connection refused

WORKER  STATE     SINCE   PID  REQUESTS  MEMORY
     0  ready      61 s  4711         5  99 MiB
     1  starting    1 s    12         0   0 MiB

MODEL  VERSION  ON  SERVERS
m            1   2  a, d     default
m            2   0  -
m           10   0  -        bad, taken out

FINDINGS
  c: error: nothing listens there
    fix: start it
  fleet: warning: two names for one server
    fix: remove one

NOT READY
  m 2 on d: UNAVAILABLE: no such file
  m 2 on a: not used: its signature differs from the majority's

OPEN BREAKERS
  m 1 on a: half open
  connection to d: open

BLOCKED
  m, version 10, on a
  old, every version, on all servers

LAST COMMANDS
  2026-01-03 ann: cordon, server b
  2026-01-04 ann: cordon, server b
  2026-01-05 ann: cordon, server b
  2026-01-06 ann: cordon, server b
  2026-01-07 ann: cordon, server b"""


def assert_fits(text: str) -> None:
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(line.isprintable() for line in text.split("\n"))


def worse(value: Any) -> Any:
    """The same view with names and texts at their worst."""
    if isinstance(value, dict):
        return {key: worse(item) for key, item in value.items()}
    if isinstance(value, list):
        return [worse(item) for item in value]
    if not isinstance(value, str) or value in ("READY", "UNAVAILABLE", "info"):
        return value
    return f"{value} {EVIL} {LONG}"


def test_the_fleet() -> None:
    assert as_text(VIEW) == FLEET_TEXT


def test_a_quiet_fleet_has_no_empty_sections() -> None:
    view = copy.deepcopy(VIEW)
    view |= {"servers": [server("a")], "models": [], "breakers": [], "findings": [], "workers": []}
    nothing: dict[str, Any] = {"cordoned": [], "blocks": [], "disabled": [], "audit": []}
    view["steering"] = {**nothing, "survives_restart": False}
    view["config"] |= {"needs_restart": [], "last_error": None, "draining": []}
    assert as_text(view) == (
        "Servers up: 1 of 1; models: 0\n"
        "Configuration 0f3a5b7c9d1e, loaded 2026-01-08T10:00:00+00:00\n\n"
        "SERVER  STATE  TRITON  IN FLIGHT  DETACHED  CHANNELS\n"
        "a       up     2.58.0          0         0  2 ready"
    )


def test_what_is_loaded_is_told_until_it_has_been_done() -> None:
    step = {"server": "a", "since": "2026-01-02", "state": "done"}
    usual = {"since": "2026-01-01", "by": "ann", "command": "load", "model": "m"}
    operations = [
        {**usual, "state": "done", "servers": [step]},
        {
            **usual,
            "state": "running",
            "servers": [step, {**step, "server": "b", "state": "running"}],
        },
        {**usual, "state": "failed", "servers": [{**step, "state": "failed", "error": "no file"}]},
    ]
    loads = [
        {"model": "m", "server": "a", "replayed": True},
        {"model": "f", "server": "b", "replayed": False, "reason": "it was loaded with files"},
    ]
    control = {"operations": operations, "replay": {"loads": loads}}
    text = as_text({**VIEW, "model_control": control})
    assert text.partition("MODEL CONTROL\n")[2].partition("\n\n")[0].splitlines() == [
        "  2026-01-01 ann: load m: a done, b running",
        "  2026-01-01 ann: load m: a failed",
        "  a: no file",
        "  f on b is not loaded again after a restart: it was loaded with files",
    ]


def test_a_gateway_that_is_not_ready_says_so_first() -> None:
    text = as_text({**VIEW, "not_ready_reason": "shutting down"})
    assert text.startswith(
        "Servers up: 3 of 4; models: 1; the gateway is not ready: shutting down\n"
    )


def test_what_will_be_forgotten_is_told() -> None:
    view = {**VIEW, "steering": {**VIEW["steering"], "survives_restart": False}}
    assert as_text(view).endswith(
        "  This is forgotten at a restart: steering.state_file is not set."
    )


def test_what_waits_for_room() -> None:
    queued = {"m": {"critical": 1, "sheddable": 12}, "n": {"critical": 0}}
    text = as_text({**VIEW, "admission": {"mode": "enforce", "queued": queued}})
    assert "WAITING FOR ROOM\n  m: 1 critical, 12 sheddable\n" in text
    assert "WAITING" not in as_text({**VIEW, "admission": {"mode": "off"}})


def test_the_fleet_fits_whatever_its_names() -> None:
    view = worse(VIEW)
    view["models"] = [
        {**model, "versions": {str(2**63 - 1): version(*[LONG] * 50)}} for model in view["models"]
    ]
    text = as_text(view)
    assert_fits(text)
    assert "…" in text


CANDIDATE = {
    "server": "a",
    "zone": "eu",
    "share": 0.6667,
    "starting_slowly": False,
    "work": 3.0,
    "limit": 7.3,
    "latency_ms": 12.34,
    "ejected": None,
}
MODEL: dict[str, Any] = {
    "alias": None,
    "model": "m",
    "version": 2,
    "chosen_by": "the default version",
    "version_is_bad": False,
    "refused": None,
    "queued": {"standard": 0, "sheddable": 3},
    "candidates": [
        CANDIDATE,
        {
            **CANDIDATE,
            "server": "b",
            "zone": None,
            "share": 0.3,
            "starting_slowly": True,
            "limit": None,
        },
        {**CANDIDATE, "server": "c", "share": 0.0333, "latency_ms": None, "ejected": "its circuit"},
    ],
    "excluded": {"d": "cordoned by an operator"},
    "priority": None,
}
PRIORITY: dict[str, Any] = {
    "tenant": "acme",
    "tier": "gold",
    "class": "standard",
    "highest_class": "critical",
    "level": 2,
    "levels": 3,
    "queue_timeout_s": 0.5,
    "unheeded": ["`queue_timeout_s` makes no difference at the servers: for this reason or that"],
}
MODEL_TEXT = """\
m version 2, chosen by: the default version
Requests that wait for room: 3 sheddable

CANDIDATE  ZONE  SHARE  WORK  LIMIT  LATENCY
a          eu    66.7%     3    7.3  12.3 ms
b          -     30.0%     3      -  12.3 ms  slow start
c          eu     3.3%     3    7.3        -  ejected, used for want of others

NOT CANDIDATES
  d: cordoned by an operator"""

REQUEST: dict[str, Any] = {
    "request_id": "r1",
    "ended_s_ago": 3.0,
    "duration_ms": 12.5,
    "model": "m",
    "version": "2",
    "outcome": "failed",
    "status": 500,
    "admission": "queued",
    "queued_ms": 4.25,
    "error": "the model raised",
    "attempts": [
        {
            "server": "a",
            "why": "the balancing policy chose among a, b",
            "candidates": ["a", "b"],
            "excluded": {"d": "cordoned by an operator"},
        },
        {"server": "b", "why": "the only one left", "candidates": ["a", "b"], "excluded": {}},
    ],
}
REQUEST_TEXT = """\
r1: m 2, failed, HTTP 500, 12.5 ms, 3.0 s ago
  waited 4.25 ms for room on a server: queued
  error: the model raised

Attempt 1: a - the balancing policy chose among a, b
  candidates: a, b
  not d: cordoned by an operator

Attempt 2: b - the only one left
  candidates: a, b"""


def test_the_explanation_of_a_model() -> None:
    assert model_text(MODEL) == MODEL_TEXT


def test_the_priority_of_a_tenant() -> None:
    paragraph = model_text({**MODEL, "priority": PRIORITY}).split("\n\n")[1]
    assert paragraph.splitlines() == [
        "Tenant acme (tier gold): class standard, up to critical when asked for; at the",
        "  servers level 2 of 3, at most 0.5 s in their queues",
        "  `queue_timeout_s` makes no difference at the servers: for this reason or that",
    ]
    nothing = {**PRIORITY, "tier": None, "level": None, "queue_timeout_s": None, "unheeded": []}
    paragraph = model_text({**MODEL, "priority": nothing}).split("\n\n")[1]
    assert paragraph.splitlines() == [
        "Tenant acme: class standard, up to critical when asked for; at the servers no",
        "  level",
    ]


def test_a_refusal_has_the_status_that_callers_see() -> None:
    refused = {"outcome": "not_ready", "error": "no server is ready to take the request"}
    text = model_text(
        {**MODEL, "queued": {}, "candidates": [], "refused": refused, "version_is_bad": True}
    )
    assert text.splitlines()[1:5] == [
        "This version is bad: it fails on most of its servers, so the servers are not",
        "  blamed.",
        "A request is refused now with 503: no server is ready to take the request",
        "",
    ]


def test_the_explanation_of_a_request() -> None:
    assert request_text(REQUEST) == REQUEST_TEXT


def test_a_request_that_never_got_a_server() -> None:
    view = {
        **REQUEST,
        "queued_ms": 0.0,
        "model": "",
        "outcome": "not_found",
        "status": 404,
        "attempts": [],
    }
    assert request_text(view) == (
        "r1: no known model, not_found, HTTP 404, 12.5 ms, 3.0 s ago\n"
        "  error: the model raised\n"
        "No server was chosen for it."
    )


def test_explanations_fit_whatever_the_names() -> None:
    assert_fits(model_text({**worse(MODEL), "excluded": {LONG: EVIL}}))
    assert_fits(model_text({**worse(MODEL), "priority": {**worse(PRIORITY), "levels": 3}}))
    assert_fits(request_text({**worse(REQUEST), "request_id": LONG}))


@pytest.mark.parametrize("text", [EVIL, "a\tb\x00c\x9b2J", "\u2028\ud800"])
def test_no_text_commands_the_terminal(text: str) -> None:
    assert plain(text).isprintable()


def test_a_table_is_cut_where_it_is_widest() -> None:
    lines = table([("name", "n", "x" * 200), ("b", 12345, "y")], numbers=(1,))
    assert [len(line) for line in lines] == [80, 14]
    assert lines[0].endswith("x…")
    assert lines[1] == "b     12345  y"


def test_a_paragraph_goes_on_further_in() -> None:
    assert wrapped("word " * 30, "  ").splitlines()[1].startswith("    word")


def test_an_alias_is_told_with_its_shares() -> None:
    arms = [
        {"model": "m", "version": 1, "share": 0.9},
        {"model": "m", "version": None, "share": 0.1},
    ]
    alias = {"name": "latest", "sticky": "X-User-Id", "arms": arms}
    text = " ".join(model_text({**MODEL, "alias": alias}).split())
    assert "latest is an alias: 90.0% m 1, 10.0% m (default version)" in text
    assert "the same for one X-User-Id" in text


PLAN: dict[str, Any] = {
    "from": "0f3a5b7c9d1e",
    "to": "112233445566",
    "servers": {"added": ["c"], "removed": ["b"], "reconnected": ["a"]},
    "settings": [
        {"key": "servers.a.serve", "from": ["*"], "to": ["x", "y"]},
        {"key": "balancing.zone", "from": None, "to": "7"},
    ],
    "needs_restart": [{"key": "api.port", "from": 8080, "to": 80}],
    "consequences": ["1 model is left without a server: m 1 - refused with 503 from then on"],
}


def test_a_plan() -> None:
    assert (
        plan_text(PLAN)
        == """\
configuration 0f3a5b7c9d1e -> 112233445566
  + server c
  - server b
  ~ server a, connected anew
  ~ servers.a.serve: ["*"] -> ["x", "y"]
  ~ balancing.zone: unset -> 7
NEEDS A RESTART, and stays as it is until then
  ~ api.port: 8080 -> 80
CONSEQUENCES
  1 model is left without a server: m 1 - refused with 503 from then on"""
    )


def test_a_plan_that_changes_nothing_says_so() -> None:
    nothing = {"added": [], "removed": [], "reconnected": []}
    empty = {"servers": nothing, "settings": [], "needs_restart": [], "consequences": []}
    assert plan_text({**PLAN, **empty}) == (
        "configuration 0f3a5b7c9d1e -> 112233445566\n  nothing changes"
    )


def test_a_plan_fits_whatever_the_names() -> None:
    assert_fits(plan_text(worse(PLAN)))
