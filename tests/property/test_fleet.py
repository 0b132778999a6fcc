"""Whatever is observed in whatever order, requests are routed to what can take them."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.fleet import FleetTable, ModelRow, ModelVersion
from routing.types import ModelSpec, Server, State

SERVERS = ("a", "b", "c")
KEYS = [ModelVersion(model, version) for model in ("m", "n") for version in (1, 2, 10)]
SOME_SERVER = st.sampled_from(SERVERS)
SOME_KEY = st.sampled_from(KEYS)
SOME_KEYS = st.frozensets(SOME_KEY)
ROWS = st.builds(ModelRow, st.sampled_from(State), st.just("reason"))


class FleetMachine(RuleBasedStateMachine):
    """Feeds a table with observations and keeps the simplest model of them beside it."""

    @initialize(quorum=st.sampled_from([0.1, 0.5, 1.0]))
    def start(self, quorum: float) -> None:
        self.now_s = 100.0
        self.table = FleetTable(map(Server, SERVERS), quorum=quorum, recently_ready_s=50.0)
        self.up: set[str] = set()
        self.ready: dict[str, frozenset[ModelVersion]] = dict.fromkeys(SERVERS, frozenset())
        self.suspected: dict[tuple[str, ModelVersion], float] = {}
        self.sizes: dict[tuple[str, ModelVersion], int] = {}

    @rule(step_s=st.floats(0.001, 100))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(name=SOME_SERVER, version=st.sampled_from(["2.51.0", "2.58.0"]))
    def comes_up(self, name: str, version: str) -> None:
        self.table.server_up(name, server_id=name, triton_version=version, now_s=self.now_s)
        self.up.add(name)

    @rule(name=SOME_SERVER, reason=st.sampled_from(["refused", "silent"]))
    def goes_down(self, name: str, reason: str) -> None:
        self.table.server_down(name, reason, now_s=self.now_s)
        self.up.discard(name)

    @rule(name=SOME_SERVER, ready=SOME_KEYS, age_s=st.sampled_from([0.0, 1.0, 200.0]))
    def is_polled(self, name: str, ready: frozenset[ModelVersion], age_s: float) -> None:
        asked_s = self.now_s - age_s
        self.table.observe_ready(name, ready, asked_s=asked_s, now_s=self.now_s)
        stands = {
            at: since for at, since in self.suspected.items() if at[0] != name or since > asked_s
        }
        if ready != self.ready[name] or stands != self.suspected:
            self.sizes = {
                at: size for at, size in self.sizes.items() if at[0] != name or at[1] in ready
            }
        self.ready[name], self.suspected = ready, stands

    @rule(name=SOME_SERVER, index=st.dictionaries(SOME_KEY, ROWS), lying=st.sets(st.just("z")))
    def is_listed(self, name: str, index: dict[ModelVersion, ModelRow], lying: set[str]) -> None:
        self.table.observe_index(name, index, lying, now_s=self.now_s)

    @rule(name=SOME_SERVER, key=SOME_KEY)
    def says_not_ready(self, name: str, key: ModelVersion) -> None:
        self.table.suspect(name, key, "it said so", now_s=self.now_s)
        self.suspected.setdefault((name, key), self.now_s)

    @rule(name=SOME_SERVER, key=SOME_KEY, size=st.integers(0, 3))
    def is_described(self, name: str, key: ModelVersion, size: int) -> None:
        spec = ModelSpec(key.model, key.version, inputs=(), outputs=(), max_batch_size=size)
        self.table.learn_spec(name, spec, now_s=self.now_s)
        self.sizes[name, key] = size

    def holders(self, key: ModelVersion) -> tuple[str, ...]:
        """Those that can serve a version and have the signature that most of them have."""
        able = self.able(key)
        sizes = [self.sizes[name, key] for name in able if (name, key) in self.sizes]
        if not sizes:
            return able
        usual = Counter(sizes).most_common(1)[0][0]  # of equals the first counted
        return tuple(name for name in able if self.sizes.get((name, key), usual) == usual)

    def able(self, key: ModelVersion) -> tuple[str, ...]:
        return tuple(
            name
            for name in SERVERS
            if name in self.up and key in self.ready[name] and (name, key) not in self.suspected
        )

    @invariant()
    def requests_go_to_servers_that_are_up_ready_and_not_suspected(self) -> None:
        for key in KEYS:
            holders = self.holders(key)
            if holders:
                route = self.table.snapshot.resolve(key.model, key.version, self.now_s)
                assert route.servers == holders
                assert set(route.left_out) == {*self.able(key)} - {*holders}
                assert route.spec.max_batch_size in {
                    self.sizes.get((name, key), 0) for name in holders
                }
                assert (route.spec.model, route.spec.version) == key
            else:
                with pytest.raises((NoSuchModel, NoReadyEndpoint)):
                    self.table.snapshot.resolve(key.model, key.version, self.now_s)

    @invariant()
    def the_default_is_one_of_the_ready_versions(self) -> None:
        for model in ("m", "n"):
            ready = {key.version for key in KEYS if key.model == model and self.holders(key)}
            if ready:
                route = self.table.snapshot.resolve(model, None, self.now_s)
                assert route.spec.version in ready
            else:
                with pytest.raises((NoSuchModel, NoReadyEndpoint)):
                    self.table.snapshot.resolve(model, None, self.now_s)

    @invariant()
    def the_view_shows_ready_exactly_what_a_server_can_serve(self) -> None:
        for name, row in self.table.snapshot.servers.items():
            assert row.up == (name in self.up)
            shown = {key for key, model in row.models.items() if model.state is State.READY}
            assert shown == {key for key in KEYS if name in self.able(key)}
            assert all(
                model.reason for model in row.models.values() if model.state is not State.READY
            )


FleetMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestFleet = FleetMachine.TestCase
