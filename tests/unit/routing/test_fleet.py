"""What is observed of the servers becomes the picture requests are routed on."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.fleet import (
    NEVER,
    FleetSnapshot,
    FleetTable,
    ModelRow,
    ModelRules,
    ModelVersion,
    VersionRoute,
)
from routing.types import ModelSpec, Server, State, TensorSpec

RECENT_S = 300.0
M1, M2 = ModelVersion("m", 1), ModelVersion("m", 2)


class Fleet:
    """A table of servers, told of observations at a time that only the test moves."""

    def __init__(
        self, *servers: Server, quorum: float = 0.5, rules: ModelRules | None = None
    ) -> None:
        self.now_s = 1000.0
        self.table = FleetTable(
            servers or (Server("a"), Server("b")),
            quorum=quorum,
            recently_ready_s=RECENT_S,
            rules={"m": rules} if rules else None,
        )

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.table.snapshot

    def up(self, name: str, *ready: ModelVersion, version: str = "2.58.0") -> None:
        self.ready(name, *ready)
        self.table.server_up(name, server_id=f"id-{name}", triton_version=version, now_s=self.now_s)

    def ready(self, name: str, *ready: ModelVersion, asked_s: float | None = None) -> None:
        asked_s = self.now_s if asked_s is None else asked_s
        self.table.observe_ready(name, ready, asked_s=asked_s, now_s=self.now_s)

    def down(self, name: str, reason: str = "refused") -> None:
        self.table.server_down(name, reason, now_s=self.now_s)

    def index(self, name: str, rows: Mapping[ModelVersion, ModelRow], *unloaded: str) -> None:
        self.table.observe_index(name, rows, unloaded, now_s=self.now_s)

    def suspect(self, name: str, key: ModelVersion, reason: str = "it said so") -> None:
        self.table.suspect(name, key, reason, now_s=self.now_s)

    def resolve(self, version: int | None = None, model: str = "m") -> VersionRoute:
        return self.snapshot.resolve(model, version, self.now_s)

    def servers(self, version: int | None = None) -> tuple[str, ...]:
        return self.resolve(version).servers

    def refusal(self, version: int | None = None, model: str = "m") -> tuple[type, str]:
        with pytest.raises((NoSuchModel, NoReadyEndpoint)) as caught:
            self.resolve(version, model)
        return type(caught.value), str(caught.value)

    def learn(self, name: str, version: int = 1, **spec: Any) -> None:
        new = ModelSpec("m", version, **({"inputs": (), "outputs": ()} | spec))
        self.table.learn_spec(name, new, now_s=self.now_s)

    def row(self, name: str, key: ModelVersion = M1) -> ModelRow:
        return self.snapshot.servers[name].models[key]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


UNKNOWN = "Request for unknown model: 'm'"


# --- servers


def test_before_the_first_answer_nothing_is_known_to_be_missing(fleet: Fleet) -> None:
    assert fleet.refusal() == (NoReadyEndpoint, "no server of the fleet has answered yet")
    assert [(row.up, row.reason) for row in fleet.snapshot.servers.values()] == [
        (False, "not probed yet"),
        (False, "not probed yet"),
    ]


def test_a_server_that_answers_is_shown_with_its_identity(fleet: Fleet) -> None:
    fleet.up("a", M1)
    row = fleet.snapshot.servers["a"]
    assert (row.up, row.reason, row.server_id, row.triton_version) == (True, "", "id-a", "2.58.0")
    assert row.models == {M1: ModelRow(State.READY)}


def test_a_server_that_is_down_gets_nothing_and_says_why(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.up("b", M1)
    fleet.down("a", "it burns")
    assert fleet.servers() == ("b",)
    assert fleet.row("a") == ModelRow(State.UNKNOWN, "it burns")
    fleet.up("a", M1)
    assert fleet.servers() == ("a", "b")
    assert fleet.row("a") == ModelRow(State.READY)


def test_a_new_reason_is_shown_and_the_same_one_changes_nothing(fleet: Fleet) -> None:
    fleet.down("a", "one")
    shown = fleet.snapshot
    fleet.down("a", "one")
    assert fleet.snapshot is shown
    fleet.down("a", "two")
    assert fleet.snapshot.servers["a"].reason == "two"


def test_a_snapshot_never_changes(fleet: Fleet) -> None:
    fleet.up("a", M1)
    before = fleet.snapshot
    fleet.down("a")
    fleet.up("b", M1, M2)
    assert before.resolve("m", None, fleet.now_s).servers == ("a",)
    assert list(before.models["m"].versions) == [1]


def test_equal_observations_keep_the_snapshot(fleet: Fleet) -> None:
    spec = ModelSpec("m", 1, inputs=(), outputs=(), max_batch_size=4)
    rows = {M1: ModelRow(State.READY)}

    def observe() -> None:
        fleet.up("a", M1)
        fleet.index("a", rows, "z")
        fleet.table.learn_spec("a", spec, now_s=fleet.now_s)
        fleet.suspect("b", M1)

    observe()
    shown = fleet.snapshot
    fleet.now_s += 5
    observe()
    assert fleet.snapshot is shown


def test_a_server_that_is_down_is_lost_until_it_is_back_with_what_it_has_then(
    fleet: Fleet,
) -> None:
    fleet.up("a", M1)
    fleet.up("b", M1)
    assert fleet.resolve().lost == frozenset()
    fleet.down("a")
    fleet.down("a", "for another reason")
    assert fleet.resolve().lost == {"a"}
    fleet.up("a")
    assert (fleet.servers(), fleet.resolve().lost) == (("b",), frozenset())


def test_what_is_not_used_or_not_ready_is_not_lost_when_it_is_down() -> None:
    fleet = Fleet(Server("a", serve=("n",)), Server("b"), Server("c"))
    fleet.up("a", M1)
    fleet.up("b")
    fleet.index("b", {M1: ModelRow(State.UNAVAILABLE, "no file")})
    fleet.up("c", M1)
    for name in "ab":
        fleet.down(name)
    assert fleet.resolve().lost == frozenset()


# --- models and versions


def test_an_unknown_model_or_version_is_not_found(fleet: Fleet) -> None:
    fleet.up("a", M1)
    other = "Request for unknown model: 'other' is not found"
    assert fleet.refusal(model="other") == (NoSuchModel, other)
    assert fleet.refusal(7) == (NoSuchModel, f"{UNKNOWN} version 7 is not found")


def test_a_version_can_be_asked_for_by_number(fleet: Fleet) -> None:
    fleet.up("a", M1, M2)
    fleet.up("b", M1)
    assert fleet.servers(1) == ("a", "b")
    assert fleet.servers(2) == ("a",)


def test_what_is_no_longer_ready_is_expected_back_for_a_while(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.now_s += 500  # the last poll that lists it counts, not the first
    fleet.ready("a", M1)
    fleet.ready("a")
    fleet.now_s += RECENT_S
    assert fleet.refusal(1) == (NoReadyEndpoint, f"{UNKNOWN} version 1 is not at ready state")
    assert fleet.refusal() == (NoReadyEndpoint, f"{UNKNOWN} has no available versions")
    fleet.now_s += 1
    assert fleet.refusal(1) == (NoSuchModel, f"{UNKNOWN} version 1 is not at ready state")
    assert fleet.refusal() == (NoSuchModel, f"{UNKNOWN} has no available versions")


def test_what_was_ready_long_ago_is_forgotten_with_the_next_change(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.ready("a")
    fleet.now_s += RECENT_S + 1
    fleet.down("b", "still down")
    assert fleet.refusal() == (NoSuchModel, f"{UNKNOWN} is not found")
    assert fleet.snapshot.models == {}


def test_of_a_model_only_the_versions_that_are_long_gone_are_forgotten(fleet: Fleet) -> None:
    fleet.up("a", M1, M2)
    fleet.ready("a", M2)
    fleet.now_s += RECENT_S + 1
    fleet.down("b", "still down")
    assert list(fleet.snapshot.models["m"].versions) == [2]
    fleet.ready("a", M1, M2)
    assert fleet.servers(1) == ("a",)


@pytest.mark.parametrize(
    ("state", "kind"),
    [(State.LOADING, NoReadyEndpoint), (State.UNAVAILABLE, NoSuchModel)],
)
def test_a_loading_model_is_expected_and_a_failed_one_is_not(
    fleet: Fleet, state: State, kind: type
) -> None:
    fleet.up("a")
    fleet.index("a", {M1: ModelRow(state, "why")})
    assert fleet.refusal(1) == (kind, f"{UNKNOWN} version 1 is not at ready state")
    assert fleet.refusal() == (kind, f"{UNKNOWN} has no available versions")
    assert fleet.row("a") == ModelRow(state, "why")


def test_loading_on_a_server_that_is_down_promises_nothing(fleet: Fleet) -> None:
    fleet.up("a")
    fleet.index("a", {M1: ModelRow(State.LOADING)})
    fleet.down("a")
    assert fleet.refusal(1)[0] is NoSuchModel


def test_the_statistics_are_newer_than_the_index(fleet: Fleet) -> None:
    fleet.up("a", M2)
    fleet.index("a", {M1: ModelRow(State.READY), M2: ModelRow(State.LOADING)}, "only-on-disk")
    gone = ModelRow(State.UNKNOWN, "no longer in the server's statistics")
    assert (fleet.row("a", M1), fleet.row("a", M2)) == (gone, ModelRow(State.READY))
    assert fleet.snapshot.servers["a"].unloaded == {"only-on-disk"}
    assert fleet.refusal(1)[0] is NoSuchModel


# --- suspicion


def test_a_suspected_version_is_out_until_a_later_poll_lists_it(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.up("b", M1)
    fleet.suspect("a", M1, "it said no")
    assert fleet.servers() == ("b",)
    assert fleet.row("a") == ModelRow(State.UNKNOWN, "it said no")
    fleet.ready("a", M1, asked_s=fleet.now_s - 0.001)  # asked before the suspicion was raised
    assert fleet.servers() == ("b",)
    fleet.ready("a", M1)
    assert fleet.servers() == ("a", "b")


def test_the_first_reason_of_a_suspicion_stands(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.suspect("a", M1, "first")
    fleet.suspect("a", M1, "second")
    assert fleet.row("a").reason == "first"


# --- the default version


def test_the_default_follows_the_quorum_and_stays_when_it_is_lost() -> None:
    fleet = Fleet(quorum=1.0)
    fleet.up("a", M1)
    fleet.up("b", M1)
    assert fleet.resolve().spec.version == 1
    fleet.ready("a", M1, M2)
    assert fleet.resolve().spec.version == 1
    fleet.ready("b", M1, M2)
    assert fleet.resolve().spec.version == 2
    fleet.ready("a", M1)
    assert fleet.snapshot.models["m"].default == 1  # on all; 2 is on half of them
    fleet.ready("b", M2)
    assert fleet.snapshot.models["m"].default == 1  # none is on all: what it was


def test_a_pinned_default_is_used_even_where_it_is_missing() -> None:
    fleet = Fleet(rules=ModelRules(default_version=1))
    fleet.up("a", M1, M2)
    assert fleet.resolve().spec.version == 1
    fleet.ready("a", M2)
    assert fleet.refusal() == (NoReadyEndpoint, f"{UNKNOWN} version 1 is not at ready state")
    fleet = Fleet(rules=ModelRules(default_version=9))
    fleet.up("a", M1)
    assert fleet.refusal() == (NoSuchModel, f"{UNKNOWN} version 9 is not found")


def test_which_versions_are_pinned() -> None:
    assert Fleet(rules=ModelRules(default_version=9)).table.pinned_versions() == {"m": 9}
    assert Fleet(rules=ModelRules(pool="gpu")).table.pinned_versions() == {}


# --- signatures


def test_signatures_are_learned_once_and_forgotten_with_the_version(fleet: Fleet) -> None:
    spec = ModelSpec("m", 1, inputs=(TensorSpec("IN", "FP32", (-1,)),), outputs=())
    fleet.up("a", M1)
    assert fleet.table.missing_specs("a", [M2, M1]) == [M1, M2]
    assert fleet.resolve().spec == ModelSpec("m", 1, inputs=(), outputs=())
    fleet.table.learn_spec("a", spec, now_s=fleet.now_s)
    assert fleet.table.missing_specs("a", [M1]) == []
    assert fleet.resolve().spec == spec
    fleet.ready("a")
    assert fleet.table.missing_specs("a", [M1]) == [M1]


def test_a_signature_may_be_learned_before_the_version_is_seen_ready(fleet: Fleet) -> None:
    before = fleet.snapshot
    fleet.learn("a", max_batch_size=4)
    assert fleet.snapshot is before
    fleet.up("a", M1)
    assert fleet.resolve().spec.max_batch_size == 4


def test_a_signature_is_taken_from_a_server_that_can_serve_it(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.up("b", M1)
    for name, size in {"a": 1, "b": 2}.items():
        fleet.learn(name, max_batch_size=size)
    assert fleet.resolve().spec.max_batch_size == 1
    fleet.down("a")
    assert fleet.resolve().spec.max_batch_size == 2


def test_servers_whose_signature_differs_from_the_majority_s_are_left_out() -> None:
    fleet = Fleet(*map(Server, "abc"))
    for name in "abc":
        fleet.up(name, M1)
    fleet.learn("a", max_batch_size=8, decoupled=True)
    fleet.learn("b")
    fleet.learn("c")
    route = fleet.resolve()
    assert route.servers == ("b", "c")
    assert route.left_out == {
        "a": "its signature differs from the majority's in max_batch_size and decoupled"
    }
    assert route.spec.max_batch_size == 0
    fleet.learn("a")
    assert fleet.servers() == ("a", "b", "c")
    assert fleet.resolve().left_out == {}


def test_of_two_signatures_the_one_of_the_first_server_counts(fleet: Fleet) -> None:
    fleet.up("b", M1)
    fleet.learn("b", max_batch_size=8)
    assert fleet.servers() == ("b",)
    fleet.up("a", M1)
    assert fleet.servers() == ("a", "b")  # nothing is known against it
    fleet.learn("a")
    assert fleet.servers() == ("a",)
    fleet.down("a")
    assert fleet.servers() == ("b",)


def test_with_compatible_signatures_all_are_used() -> None:
    fleet = Fleet(rules=ModelRules(compatible=True))
    for name, size in {"a": 1, "b": 2}.items():
        fleet.up(name, M1)
        fleet.learn(name, max_batch_size=size)
    assert fleet.servers() == ("a", "b")
    assert fleet.resolve().left_out == {}


def test_another_version_may_look_different(fleet: Fleet) -> None:
    fleet.up("a", M1)
    fleet.up("b", M2)
    fleet.learn("a", 1, max_batch_size=1)
    fleet.learn("b", 2, max_batch_size=2)
    assert (fleet.servers(1), fleet.servers(2)) == (("a",), ("b",))


def test_equal_signatures_are_kept_once(fleet: Fleet) -> None:
    for name in "ab":
        fleet.up(name, M1)
        fleet.learn(name, max_batch_size=4)
    one, other = (fleet.table._observed[name].specs[M1] for name in "ab")
    assert one is other


def test_who_disagrees_is_known_whatever_it_is_used_for() -> None:
    fleet = Fleet(*map(Server, "abc"), rules=ModelRules(compatible=True))
    for name in "abc":
        fleet.up(name, M1, M2)
        fleet.learn(name)
    assert fleet.table.disagreements() == {}
    fleet.learn("b", max_batch_size=8)
    fleet.learn("a", 2)
    sizes = {
        key: {name: spec.max_batch_size for name, spec in by_server.items()}
        for key, by_server in fleet.table.disagreements().items()
    }
    assert sizes == {M1: {"a": 0, "b": 8, "c": 0}}
    fleet.down("b")
    assert fleet.table.disagreements() == {}


def test_a_change_of_one_server_leaves_the_routes_of_other_versions_alone(fleet: Fleet) -> None:
    fleet.up("a", M1, M2)
    fleet.up("b", M1)
    before = fleet.snapshot.models["m"].versions
    fleet.down("b")
    after = fleet.snapshot.models["m"].versions
    assert after[1] is not before[1]
    assert after[2] is before[2]


def test_what_a_server_lists_besides_changes_no_route(fleet: Fleet) -> None:
    fleet.up("a", M1)
    models = fleet.snapshot.models
    fleet.index("b", {M1: ModelRow(State.UNAVAILABLE, "no file")})
    assert fleet.snapshot.models is models
    assert M1 in fleet.snapshot.servers["b"].models


# --- what a server is used for


def test_a_server_is_used_for_the_models_it_is_to_serve_only() -> None:
    fleet = Fleet(Server("a", serve=("x*", "n")), Server("b"))
    for name in "ab":
        fleet.up(name, M1, ModelVersion("n", 1), ModelVersion("xyz", 1))
    assert fleet.servers() == ("b",)
    assert fleet.resolve().left_out == {"a": "the server's `serve` does not name this model"}
    for model in ("n", "xyz"):
        assert fleet.resolve(model=model).servers == ("a", "b")
    assert fleet.row("a") == ModelRow(State.READY)  # it is shown all the same


def test_patterns_count_the_case() -> None:
    fleet = Fleet(Server("a", serve=("M",)))
    fleet.up("a", M1)
    assert fleet.refusal()[0] is NoReadyEndpoint
    assert fleet.snapshot.models["m"].default is None


def test_a_model_may_be_for_one_pool_of_servers() -> None:
    servers = (Server("a", pool="gpu"), Server("b"), Server("c", pool="cpu"))
    fleet = Fleet(*servers, rules=ModelRules(pool="gpu"))
    for name in "abc":
        fleet.up(name, M1, ModelVersion("n", 1))
    assert fleet.servers() == ("a",)
    assert fleet.resolve().left_out == dict.fromkeys("bc", "the model is for the pool 'gpu'")
    assert fleet.resolve(model="n").servers == ("a", "b", "c")


def test_what_a_server_is_not_used_for_has_no_say() -> None:
    fleet = Fleet(Server("a", serve=("n",)), Server("b", serve=("n",)), Server("c"), quorum=1.0)
    for name in "ab":
        fleet.up(name, M1)
        fleet.learn(name, max_batch_size=8)
    fleet.up("c", M2, M1)
    fleet.learn("c")
    assert fleet.servers(1) == ("c",)
    assert fleet.resolve().spec.version == 2  # on all that serve the model
    assert set(fleet.resolve(1).left_out) == {"a", "b"}


# --- coming back


@pytest.mark.parametrize(
    ("loading", "last_ready_s", "expected"),
    [(True, NEVER, True), (False, NEVER, False), (False, 5.0, True), (False, 4.9, False)],
)
def test_when_a_version_is_expected_back(
    loading: bool, last_ready_s: float, expected: bool
) -> None:
    spec = ModelSpec("m", 1, inputs=(), outputs=())
    route = VersionRoute(spec, (), loading=loading, last_ready_s=last_ready_s)
    assert route.expected(15.0, 10.0) is expected


def test_a_table_goes_on_in_another_process() -> None:
    """Signatures are compared by identity, which is another one there."""
    here = FleetTable([Server("a"), Server("b")], quorum=0.5, recently_ready_s=300.0)
    key = ModelVersion("m", 1)
    for name in ("a", "b"):
        here.learn_spec(name, ModelSpec("m", 1, inputs=(), outputs=()), now_s=1.0)
        here.observe_ready(name, {key}, asked_s=1.0, now_s=1.0)
        here.server_up(name, server_id=name, triton_version="2.51.0", now_s=1.0)
    there: FleetTable = pickle.loads(pickle.dumps(here))
    assert there.snapshot == here.snapshot
    there.server_down("a", "gone", now_s=2.0)
    there.server_down("b", "gone", now_s=2.0)
    assert there.snapshot.models["m"].versions[1].servers == ()
