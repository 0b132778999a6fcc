"""Statistics are summed over the servers; the index shows each version in its best state."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fanout import FleetStatistics, merge_statistics, repository_index, unavailable
from gateway.faults import Fault, Kind, Origin
from routing.fleet import FleetSnapshot, FleetTable, ModelRow, ModelVersion
from routing.types import Server, State


def row(name: str = "m", version: str = "1", **fields: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "last_inference": 0, "inference_count": 0, **fields}


def times(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


# --- merging statistics


def test_counters_are_added_and_the_last_inference_is_the_latest() -> None:
    one = row(inference_count=3, last_inference=500, inference_stats={"success": times(3, 30)})
    other = row(inference_count=4, last_inference=200, inference_stats={"success": times(4, 40)})
    merged = row(inference_count=7, last_inference=500, inference_stats={"success": times(7, 70)})
    assert merge_statistics([one, other]) == [merged]


def test_models_and_versions_stay_apart_in_order() -> None:
    rows = [row("n"), row("m", "2"), row("m", "1"), row("n")]
    assert [(r["name"], r["version"]) for r in merge_statistics(rows)] == [
        ("m", "1"),
        ("m", "2"),
        ("n", "1"),
    ]


def test_response_statistics_are_added_by_their_key() -> None:
    one = row(response_stats={"0": {"success": times(1, 10)}, "1": {"success": times(2, 20)}})
    other = row(response_stats={"1": {"success": times(3, 30)}, "2": {"success": times(4, 40)}})
    (merged,) = merge_statistics([one, other])
    assert merged["response_stats"] == {
        "0": {"success": times(1, 10)},
        "1": {"success": times(5, 50)},
        "2": {"success": times(4, 40)},
    }


def test_batch_statistics_are_added_by_their_size() -> None:
    def batch(size: int, count: int) -> dict[str, Any]:
        return {"batch_size": size, "compute_infer": times(count, 10 * count)}

    one, other = row(batch_stats=[batch(4, 1), batch(1, 2)]), row(batch_stats=[batch(4, 5)])
    (merged,) = merge_statistics([one, other])
    assert merged["batch_stats"] == [batch(1, 2), batch(4, 6)]


def test_memory_is_listed_for_every_device_of_every_server() -> None:
    usage = [{"type": "GPU", "id": 0, "byte_size": 5}]
    (merged,) = merge_statistics([row(memory_usage=usage), row(memory_usage=usage)])
    assert merged["memory_usage"] == usage * 2


def test_a_field_only_some_servers_know_is_kept() -> None:
    (merged,) = merge_statistics([row(new=5), row(), row(new=6, other=1)])
    assert (merged["new"], merged["other"]) == (11, 1)


def test_the_rows_of_the_servers_are_left_as_they_were() -> None:
    rows = [row(inference_stats={"success": times(1, 1)}) for _ in range(3)]
    merge_statistics(rows)
    assert rows[0] == row(inference_stats={"success": times(1, 1)})


ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from(["m", "n"]),
        st.sampled_from(["1", "2"]),
        inference_count=st.integers(0, 2**40),
        last_inference=st.integers(0, 2**40),
    ),
    max_size=12,
)


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_the_servers_does_not_matter(rows: list[dict[str, Any]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    assert merge_statistics(shuffled) == merge_statistics(rows)


@given(ROWS)
def test_no_count_is_lost(rows: list[dict[str, Any]]) -> None:
    merged = merge_statistics(rows)
    assert sum(r["inference_count"] for r in merged) == sum(r["inference_count"] for r in rows)
    assert max((r["last_inference"] for r in merged), default=0) == max(
        (r["last_inference"] for r in rows), default=0
    )


# --- asking the fleet


class Fleet:
    """Two servers; `b` alone holds version 2."""

    def __init__(self) -> None:
        self.table = FleetTable(map(Server, "abc"), quorum=1.0, recently_ready_s=1.0)
        self.observe("a", 1)
        self.observe("b", 1, 2)

    def observe(self, name: str, *versions: int) -> None:
        ready = [ModelVersion("m", version) for version in versions]
        self.table.observe_ready(name, ready, asked_s=0.0, now_s=0.0)
        self.table.server_up(name, server_id=name, triton_version="2.58.0", now_s=0.0)

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.table.snapshot

    def unreachable(self, server: str, reason: str) -> None:
        raise AssertionError

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        raise AssertionError


class Source:
    """Answers one row a server, or fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, float]] = []
        self.failing: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def statistics(
        self, server: str, model: str, version: str, *, timeout_s: float
    ) -> list[dict[str, Any]]:
        self.asked.append((server, model, version, timeout_s))
        await self.gate.wait()
        if server in self.failing:
            raise Fault(Kind.BROKEN, f"no statistics from {server}", origin=Origin.UPSTREAM)
        return [row(inference_count=1)]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def statistics(source: Source) -> FleetStatistics:
    return FleetStatistics(Fleet(), source, timeout_s=2.0, clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("model", "version", "asked"),
    [
        ("", None, ["a", "b"]),  # c is not up
        ("m", None, ["a", "b"]),
        ("m", 1, ["a", "b"]),
        ("m", 2, ["b"]),
    ],
)
async def test_those_are_asked_that_can_answer(
    statistics: FleetStatistics, source: Source, model: str, version: int | None, asked: list[str]
) -> None:
    (merged,) = await statistics.read(model, version)
    assert merged["inference_count"] == len(asked)
    text = "" if version is None else str(version)
    assert sorted(source.asked) == [(server, model, text, 2.0) for server in asked]


async def test_an_unknown_model_asks_nobody(statistics: FleetStatistics, source: Source) -> None:
    for model, version in (("nope", None), ("m", 7)):
        with pytest.raises(Fault) as caught:
            await statistics.read(model, version)
        assert caught.value.kind is Kind.NOT_FOUND
    assert source.asked == []


async def test_a_server_that_fails_is_left_out(statistics: FleetStatistics, source: Source) -> None:
    source.failing = {"a"}
    assert [r["inference_count"] for r in await statistics.read("m", None)] == [1]


async def test_when_all_fail_the_caller_reads_why(
    statistics: FleetStatistics, source: Source
) -> None:
    source.failing = {"a", "b"}
    with pytest.raises(Fault, match="no statistics from a"):
        await statistics.read("m", None)


async def test_callers_at_the_same_time_share_one_round(
    statistics: FleetStatistics, source: Source
) -> None:
    source.gate.clear()
    loop = asyncio.get_running_loop()
    readers = [loop.create_task(statistics.read("m", None)) for _ in range(20)]
    other = loop.create_task(statistics.read("", None))
    await asyncio.sleep(0)
    readers[0].cancel()  # one that leaves takes nothing from the others
    source.gate.set()
    rows = await asyncio.gather(*readers[1:])
    await other
    assert all(r[0]["inference_count"] == 2 for r in rows)
    assert len(source.asked) == 4
    await statistics.read("m", None)  # a later one asks again
    assert len(source.asked) == 6


# --- the repository index


def index_of(*servers: dict[tuple[str, int], ModelRow], unloaded: str = "") -> Any:
    names = [Server(str(number)) for number in range(len(servers))]
    table = FleetTable(names, quorum=1.0, recently_ready_s=1.0)
    for number, rows in enumerate(servers):
        name = str(number)
        keyed = {ModelVersion(*key): found for key, found in rows.items()}
        ready = [key for key, found in keyed.items() if found.state is State.READY]
        table.observe_ready(name, ready, asked_s=0.0, now_s=0.0)
        table.observe_index(name, keyed, unloaded.split(), now_s=0.0)
        table.server_up(name, server_id=name, triton_version="2.58.0", now_s=0.0)
    return table.snapshot


@pytest.mark.parametrize(
    ("one", "other", "best"),
    [
        (State.READY, State.LOADING, State.READY),
        (State.UNLOADING, State.LOADING, State.LOADING),
        (State.UNLOADING, State.UNAVAILABLE, State.UNLOADING),
        (State.UNKNOWN, State.UNAVAILABLE, State.UNAVAILABLE),
        (State.UNKNOWN, State.UNKNOWN, State.UNKNOWN),
    ],
)
def test_a_version_is_listed_once_in_its_best_state(one: State, other: State, best: State) -> None:
    for states in ((one, other), (other, one)):
        rows = [{("m", 1): ModelRow(s, "" if s is State.READY else s.value)} for s in states]
        (entry,) = repository_index(index_of(*rows), ready_only=False)
        expected = {"name": "m", "version": "1", "state": best.value}
        assert entry == expected | ({} if best is State.READY else {"reason": best.value})


def test_versions_are_listed_in_the_order_of_their_numbers() -> None:
    rows = {("n", 1): ModelRow(State.READY)} | {
        ("m", version): ModelRow(State.READY) for version in (10, 9, 1)
    }
    listed = repository_index(index_of(rows), ready_only=False)
    assert [(e["name"], e["version"]) for e in listed] == [
        ("m", "1"), ("m", "9"), ("m", "10"), ("n", "1"),
    ]  # fmt: skip


def test_names_that_were_never_loaded_come_last_and_bare() -> None:
    snapshot = index_of({("m", 1): ModelRow(State.READY)}, unloaded="z m a")
    ready = {"name": "m", "version": "1", "state": "READY"}
    assert repository_index(snapshot, ready_only=False) == [ready, {"name": "a"}, {"name": "z"}]
    assert repository_index(snapshot, ready_only=True) == [ready]


def test_ready_only_leaves_out_every_other_state() -> None:
    rows = {("m", n): ModelRow(state, "why") for n, state in enumerate(State, 1)}
    listed = repository_index(index_of(rows), ready_only=True)
    assert [(e["version"], e["state"]) for e in listed] == [("1", "READY")]


def test_what_the_fleet_cannot_tell_yet_may_be_asked_again() -> None:
    fault = unavailable("not known yet")
    assert (fault.kind, fault.message, fault.retry_after_s) == (Kind.NOT_READY, "not known yet", 1)
