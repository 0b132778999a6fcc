"""A fleet of routing's own parts, without sockets: what operators' views are made from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.ports import CoreView, MetricsPage, SourceStatus
from gateway.ranking import Ranking
from gateway.stores.memory import MemoryStore
from routing.aliases import Aliases
from routing.balancing.least_request import LeastRequest
from routing.fleet import FleetSnapshot, FleetTable, ModelRow, ModelRules, ModelVersion
from routing.pool import Lease, Pool, PoolSettings
from routing.priorities import Priorities
from routing.queueing import NO_QUEUES
from routing.types import Blame, ModelSpec, Server
from tests.limits.building import limits_desk

NOW_S = 1000.0


class Sources:
    """A membership whose servers all come from the configuration, and what a test adds."""

    def __init__(self, *statuses: SourceStatus, findings: Sequence[Mapping[str, str]] = ()) -> None:
        self.statuses = statuses
        self.found = findings

    def source_of(self, server: str) -> str | None:
        return "configuration"

    def sources(self) -> Sequence[SourceStatus]:
        return self.statuses

    def findings(self) -> Sequence[Mapping[str, str]]:
        return self.found


class TableFleet:
    """The real table and pool; `ready` lists (server, model, version)."""

    def __init__(
        self,
        ready: Iterable[tuple[str, str, int]],
        *,
        servers: Iterable[Server] | None = None,
        rules: Mapping[str, ModelRules] | None = None,
        **settings: Any,
    ) -> None:
        self.now_s = NOW_S
        self.aliases = Aliases({}, lambda: 0.0)
        listed = list(servers or (Server(name) for name in "abc"))
        self.table = FleetTable(listed, quorum=0.5, recently_ready_s=300.0, rules=rules)
        self.pool = Pool(
            listed,
            random=lambda: 0.0,  # of equally loaded servers the first one
            settings=PoolSettings(max_detached_calls=2, **settings),
            new_balancer=lambda _: LeastRequest(),
        )
        self.sequences: dict[str, int] = {}
        self.priorities, self.queues = Priorities(), NO_QUEUES
        self.store = MemoryStore(self.clock, max_entries=1)
        self.membership = Sources()
        self.has(*ready)

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.table.snapshot

    def view(self) -> CoreView:
        return CoreView(
            fleet=self,
            pool=self.pool,
            channels=self,
            aliases=self.aliases,
            pages=self,
            sequences=self,
            store=self.store,
            limits=limits_desk(self, self.clock),
            priorities=Ranking(self.priorities, lambda *_: self.queues),
        )

    async def pages(self) -> list[MetricsPage]:
        return []

    def clock(self) -> float:
        return self.now_s

    def has(self, *ready: tuple[str, str, int], **spec: Any) -> None:
        """Let each named server be up, with these versions ready."""
        for server in dict.fromkeys(server for server, _, _ in ready):
            keys = [ModelVersion(m, version) for name, m, version in ready if name == server]
            self.table.observe_ready(server, keys, asked_s=self.now_s, now_s=self.now_s)
            for key in keys:
                known = ModelSpec(key.model, key.version, inputs=(), outputs=(), **spec)
                self.table.learn_spec(server, known, now_s=self.now_s)
            self.table.server_up(
                server, server_id=f"id-{server}", triton_version="2.58.0", now_s=self.now_s
            )

    def index(self, server: str, rows: Mapping[ModelVersion, ModelRow], *unloaded: str) -> None:
        self.table.observe_index(server, rows, unloaded, now_s=self.now_s)

    def down(self, server: str, reason: str) -> None:
        self.table.server_down(server, reason, now_s=self.now_s)

    def pick(self, model: str, tried: Iterable[str] = ()) -> Lease:
        route = self.snapshot.resolve(model, None, self.now_s)
        return self.pool.pick(route, now_s=self.now_s, tried=set(tried))

    def fail(self, model: str, server: str, blame: Blame = Blame.FATAL) -> None:
        """Let one request to `server` end badly."""
        others = [name for name in self.pool.loads if name != server]
        lease = self.pick(model, tried=others)
        lease.settle(blame, self.now_s)
        lease.release()

    def unreachable(self, server: str, reason: str) -> None:
        raise AssertionError

    def broken(self, server: str) -> None:
        raise AssertionError

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        raise AssertionError

    def by_server(self) -> Mapping[str, int]:
        return self.sequences

    def states(self, server: str) -> Iterable[Mapping[str, Any]]:
        return [{"state": "ready", "in_flight": 0}, {"state": "idle", "in_flight": 0}]

    def findings(self) -> Sequence[Mapping[str, str]]:
        return [{"server": "c", "severity": "error", "message": "refused", "fix": "start it"}]
