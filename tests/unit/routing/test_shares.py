"""Compute time goes to those whose rows were executed, and the rest to nobody."""

import pytest

from routing.shares import GRACE_S, Executed, Shares, split
from routing.types import ModelVersion

KEY = ModelVersion("m", 1)


class Server:
    """One version on one server, which counts from what it had before anybody looked."""

    def __init__(self) -> None:
        self.shares = Shares()
        self.now_s = 100.0
        self.counted = Executed(1000, 5_000_000)
        assert self.look() == {}

    def ran(self, **rows: int) -> None:
        self.shares.ran("s", KEY, rows, self.now_s)

    def look(self, rows: int = 0, compute_us: int = 0, after_s: float = 2.0) -> dict[str, int]:
        """Let the server execute something, and see whose it was."""
        self.now_s += after_s
        self.counted = Executed(self.counted.rows + rows, self.counted.compute_us + compute_us)
        found = list(self.shares.observed("s", {KEY: self.counted}, self.now_s))
        assert [model for model, _ in found] in ([], ["m"])
        return found[0][1] if found else {}


@pytest.fixture
def server() -> Server:
    return Server()


def test_time_is_shared_out_by_rows(server: Server) -> None:
    server.ran(a=2, b=1)
    server.ran(a=1)
    assert server.look(4, 1000) == {"a": 750, "b": 250}
    assert server.look() == {}


def test_what_others_have_run_is_not_charged(server: Server) -> None:
    server.ran(a=1, b=1)
    assert server.look(8, 800) == {"a": 100, "b": 100}


def test_never_more_than_there_is(server: Server) -> None:
    server.ran(a=30, b=10)
    assert server.look(4, 400) == {"a": 300, "b": 100}


def test_requests_may_be_told_after_the_server_has_counted_them(server: Server) -> None:
    assert server.look(4, 400) == {}
    server.ran(a=4)
    assert server.look() == {"a": 400}
    server.ran(a=4)
    assert server.look() == {}  # they wait for a word of the server
    assert server.look(4, 800) == {"a": 800}


def test_the_newest_counts_first(server: Server) -> None:
    server.look(10, 100)
    server.ran(a=1)
    assert server.look(1, 7) == {"a": 7}
    server.ran(a=3)
    assert server.look(2, 40) == {"a": 50}  # and the rest from before


def test_what_waits_too_long_is_others(server: Server) -> None:
    server.look(4, 400)
    server.look(after_s=GRACE_S + 1)
    server.ran(a=4)
    assert server.look() == {}
    server.look(after_s=GRACE_S + 1)
    assert server.look(4, 400) == {}  # the rows have waited too long as well


def test_rows_wait_for_one_word_of_the_server_at_the_least(server: Server) -> None:
    server.ran(a=1)
    assert server.look(1, 10, after_s=10 * GRACE_S) == {"a": 10}


def test_a_server_that_counts_from_zero_again_was_loaded_anew(server: Server) -> None:
    server.counted = Executed(0, 0)
    server.ran(a=1)
    assert server.look(2, 300) == {"a": 150}


def test_time_that_is_counted_a_moment_before_its_rows_belongs_to_them(server: Server) -> None:
    server.ran(a=2)
    assert server.look(0, 100) == {}
    assert server.look(0, 50) == {}
    assert server.look(2, 0) == {"a": 150}


def test_time_without_rows_goes_to_nobody(server: Server) -> None:
    server.look(0, 100)
    server.look(after_s=GRACE_S + 1)
    server.ran(a=2)
    assert server.look(2, 10) == {"a": 10}


def test_a_version_loaded_later_counts_from_its_beginning(server: Server) -> None:
    late = ModelVersion("late", 3)
    list(server.shares.observed("s", {late: Executed(0, 0)}, 101.0))
    server.shares.ran("s", late, {"a": 1}, 101.0)
    found = list(server.shares.observed("s", {late: Executed(1, 9)}, 102.0))
    assert found == [("late", {"a": 9})]
    other = ModelVersion("other", 1)
    list(server.shares.observed("s", {other: Executed(5, 55)}, 102.0))
    server.shares.ran("s", other, {"a": 5}, 102.0)
    assert list(server.shares.observed("s", {other: Executed(5, 55)}, 103.0)) == [
        ("other", {"a": 55})
    ]


def test_servers_that_have_left_are_forgotten(server: Server) -> None:
    server.ran(a=1)
    server.shares.keep(lambda name: name == "s")
    assert server.look(1, 10) == {"a": 10}
    server.shares.keep(lambda name: name != "s")
    server.ran(a=1)  # nobody knows the version now
    assert server.look(1, 10) == {}
    server.ran(a=1)
    assert server.look(1, 10) == {"a": 10}


@pytest.mark.parametrize(
    ("amount", "weights", "parts"),
    [
        (10, {"a": 1, "b": 2}, {"a": 3, "b": 7}),
        (2, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0}),
        (5, {"a": 0, "b": 3}, {"a": 0, "b": 5}),
        (0, {"a": 1}, {}),
        (5, {"a": 0}, {}),
        (5, {}, {}),
    ],
)
def test_parts_are_whole_and_add_up(
    amount: int, weights: dict[str, int], parts: dict[str, int]
) -> None:
    assert split(amount, weights) == parts
