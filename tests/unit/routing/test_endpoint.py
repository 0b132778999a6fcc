"""Load as it is felt: failures weigh like work, latency is sensitive to peaks, starts are slow."""

import math

import pytest

from routing.endpoint import Candidate, ModelLoads, Roster, ServerLoad
from routing.types import Blame, Server

NOW_S = 1000.0


def loads(name: str = "m", **server: object) -> ModelLoads:
    """A model on one server."""
    roster = Roster()
    roster.add(Server("a", **server))  # type: ignore[arg-type]
    return ModelLoads(name, roster)


def candidate(capacity: float = 1.0, **slow: float) -> Candidate:
    usual = {"slow_start_s": 0.0, "slow_since_s": -math.inf}
    model = loads(capacity=capacity)
    return Candidate(model, model.servers[0], **(usual | slow))


# --- servers


def test_a_server_starts_idle_and_unheard() -> None:
    load = ServerLoad(Server("a"))
    assert (load.name, load.calls, load.rows, load.detached) == ("a", 0, 0, 0)
    assert load.last_reply_s == -math.inf
    assert repr(load) == "ServerLoad(a: 0 calls, 0 rows, 0 detached)"


@pytest.mark.parametrize(("model", "capacity"), [("m", 4.0), ("other", 2.0)])
def test_a_model_may_have_a_capacity_of_its_own(model: str, capacity: float) -> None:
    assert loads(model, capacity=2.0, model_capacity={"m": 4.0}).capacity == [capacity]


# --- work


def test_work_is_what_is_in_flight() -> None:
    model = loads()
    model.rows[0] = 3
    assert model.work(0, NOW_S) == 3.0


@pytest.mark.parametrize("blame", [Blame.VERSION, Blame.SERVER, Blame.SLOW, Blame.OVERLOAD])
def test_a_failure_weighs_like_a_row_that_fades_within_seconds(blame: Blame) -> None:
    model = loads()
    model.rows[0] = 1
    model.fail(0, blame, 0.001, NOW_S)
    assert model.work(0, NOW_S) == 2.0
    assert model.work(0, NOW_S + 1.0) == pytest.approx(1 + 1 / math.e)
    assert model.work(0, NOW_S + 5.0) == 1.0
    assert model.work(0, NOW_S) == 1.0  # and is forgotten for good


def test_failures_add_up() -> None:
    model = loads()
    for passed_s in (0.0, 0.0, 1.0):
        model.fail(0, Blame.VERSION, 0.001, NOW_S + passed_s)
    assert model.work(0, NOW_S + 1.0) == pytest.approx(1 + 2 / math.e)


# --- latency


def test_a_latency_is_unknown_before_the_first_answer() -> None:
    assert loads().latency_s(0, NOW_S) is None


def test_a_slower_answer_counts_at_once_and_a_faster_one_gradually() -> None:
    model = loads()
    model.sample(0, 0.1, NOW_S)
    model.sample(0, 0.5, NOW_S)
    assert model.latency_s(0, NOW_S) == 0.5
    model.sample(0, 0.1, NOW_S + 10.0)
    kept = 1 / math.e
    assert model.latency_s(0, NOW_S + 10.0) == pytest.approx(0.5 * kept + 0.1 * (1 - kept))


def test_a_latency_fades_while_nothing_is_heard() -> None:
    model = loads()
    model.sample(0, 1.0, NOW_S)
    assert model.latency_s(0, NOW_S + 10.0) == pytest.approx(1 / math.e)


@pytest.mark.parametrize(
    ("blame", "took_s", "felt_s"),
    [
        (Blame.VERSION, 0.001, 1.0),  # failing fast is not being fast
        (Blame.FATAL, 0.001, 1.0),
        (Blame.SLOW, 5.0, 5.0),
        (Blame.OVERLOAD, 0.001, None),
    ],
)
def test_a_failure_is_felt_as_a_slow_answer(
    blame: Blame, took_s: float, felt_s: float | None
) -> None:
    model = loads()
    model.fail(0, blame, took_s, NOW_S)
    assert model.latency_s(0, NOW_S) == felt_s


# --- candidates


def test_a_candidate_shows_its_model() -> None:
    one = candidate(2.0)
    one.model.rows[0] = 2
    one.model.sample(0, 0.25, NOW_S)
    assert (one.name, one.work(NOW_S), one.latency_s(NOW_S)) == ("a", 2.0, 0.25)
    assert (one.capacity, one.starting(NOW_S)) == (2.0, False)


@pytest.mark.parametrize(
    ("passed_s", "share"),
    [(0.0, 0.2), (3.0, 0.2), (6.0, 0.4), (15.0, 1.0), (30.0, 2.0), (1000.0, 2.0)],
)
def test_a_slow_start_grows_from_a_tenth_of_the_capacity(passed_s: float, share: float) -> None:
    one = candidate(2.0, slow_start_s=30.0, slow_since_s=NOW_S)
    assert one.capacity * one.ramp(NOW_S + passed_s) == pytest.approx(share)
    assert one.starting(NOW_S + passed_s) is (passed_s < 30.0)


def test_a_start_can_begin_again() -> None:
    one = candidate(slow_start_s=30.0)
    assert one.ramp(NOW_S) == 1.0
    one.start_slowly(NOW_S)
    assert one.ramp(NOW_S) == 0.1


# --- places


def test_models_on_the_same_servers_share_their_list_of_places() -> None:
    roster = Roster()
    first = roster.shared((0, 1, 2))
    assert roster.shared((0, 1, 1 + 1)) is first
    assert roster.shared((0, 2)) == (0, 2)
