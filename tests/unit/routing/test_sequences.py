"""The open sequences: where they are, how many there are where, and when they are forgotten."""

import pytest

from routing.sequences import Open, OpenSequences, Pin

PIN = Pin("m", 3, "a", "0001")
NOW_S = 1000.0


def keep(
    table: OpenSequences,
    key: str = "k",
    pin: Pin = PIN,
    *,
    name: str = "m",
    keep_s: float = 10.0,
    now_s: float = NOW_S,
    shared: bool = True,
) -> Open:
    return table.keep(name, key, pin, keep_s=keep_s, now_s=now_s, shared=shared)


@pytest.fixture
def table() -> OpenSequences:
    return OpenSequences()


# --- pins


@pytest.mark.parametrize("pin", [PIN, PIN.lost(), Pin("a model", 1, "b", "2")])
def test_a_pin_is_the_same_after_it_was_text(pin: Pin) -> None:
    assert Pin.of_text(pin.text()) == pin


@pytest.mark.parametrize("text", ["", "3 a 1", "x a 1 m"])
def test_other_text_is_no_pin(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Pin.of_text(text)


def test_a_lost_pin_keeps_its_version_and_has_no_server() -> None:
    assert not PIN.is_lost
    assert PIN.lost().is_lost
    assert PIN.lost().version == 3


def test_the_later_of_two_pins_counts_and_that_one_is_lost() -> None:
    later = Pin("m", 1, "b", "0002")
    assert later.replaces(PIN)
    assert later.replaces(PIN.lost())
    assert not PIN.lost().replaces(later)
    assert PIN.lost().replaces(PIN)
    assert not PIN.replaces(PIN.lost())
    assert not PIN.replaces(PIN)


# --- the table


def test_a_sequence_is_found_until_its_time_is_over(table: OpenSequences) -> None:
    kept = keep(table)
    assert table.find("m", "k", NOW_S + 10.0) is kept
    assert table.find("other", "k", NOW_S) is None
    assert table.find("m", "k", NOW_S + 10.1) is None
    assert len(table) == 0
    assert table.by_server() == {}


def test_a_use_keeps_it_for_longer(table: OpenSequences) -> None:
    kept = keep(table)
    assert keep(table, now_s=NOW_S + 9.0, keep_s=20.0, shared=False) is kept
    assert not kept.shared
    assert table.find("m", "k", NOW_S + 29.0) is kept
    assert len(table) == 1


def test_it_is_kept_while_a_request_is_under_way(table: OpenSequences) -> None:
    kept = keep(table)
    kept.running += 1
    assert table.find("m", "k", NOW_S + 99.0) is kept
    table.expire(NOW_S + 99.0)
    kept.running -= 1
    table.expire(NOW_S + 109.0)
    assert table.find("m", "k", NOW_S + 109.0) is kept
    table.expire(NOW_S + 109.1)
    assert len(table) == 0


def test_servers_are_counted_by_model(table: OpenSequences) -> None:
    keep(table, "1")
    keep(table, "2")
    keep(table, "3", Pin("m", 3, "b", "1"))
    keep(table, "3", Pin("other", 3, "b", "1"), name="other")
    assert table.held("m") == {"a": 2, "b": 1}
    assert table.held("none") == {}
    assert table.by_server() == {"a": 2, "b": 2}
    assert len(table) == 4


def test_a_sequence_that_moves_or_is_lost_is_counted_where_it_is(table: OpenSequences) -> None:
    keep(table)
    keep(table, pin=Pin("m", 3, "b", "2"))
    assert table.held("m") == {"b": 1}
    keep(table, pin=Pin("m", 3, "b", "2").lost())
    assert table.held("m") == {}
    assert len(table) == 1


def test_what_is_forgotten_is_gone(table: OpenSequences) -> None:
    keep(table, "1")
    keep(table, "2")
    for key in ("1", "1", "2"):
        table.forget("m", key)
    table.forget("other", "1")
    assert len(table) == 0
    assert table.by_server() == {}


def test_those_silent_for_longest_are_dropped_and_no_others(table: OpenSequences) -> None:
    for at in range(4):
        keep(table, str(at), now_s=NOW_S + at)
    keep(table, "0", now_s=NOW_S + 5.0)
    keep(table, "x", name="other", now_s=NOW_S, keep_s=1.0)
    table.expire(NOW_S + 12.5)
    assert [key for key in "0123" if table.find("m", key, NOW_S + 12.5)] == ["0", "3"]
    assert len(table) == 2
