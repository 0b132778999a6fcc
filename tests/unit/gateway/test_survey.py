"""What is concluded from several readings of several servers."""

from gateway.upstream.survey import Reading, hides_several, same_processes


def reading(*times_ns: int, server_id: str = "triton", model: str = "m") -> Reading:
    return Reading(server_id, {(model, "1"): times_ns})


def test_times_between_those_of_another_address_are_one_process() -> None:
    readings = {
        "a": [reading(5, 7), reading(6, 7), reading(7, 9)],
        "b": [reading(5, 7), reading(6, 8), reading(7, 9)],
        "c": [reading(50, 70), reading(60, 80), reading(70, 90)],
    }
    assert same_processes(readings) == [("a", "b")]


def test_three_addresses_of_one_process_are_one_group() -> None:
    readings = {name: [reading(5, 7)] * 3 for name in "abc"}
    assert same_processes(readings) == [("a", "b", "c")]


def test_idle_servers_are_not_taken_for_one() -> None:
    assert same_processes({name: [reading(0, 0)] * 3 for name in "ab"}) == []


def test_equal_times_under_another_id_are_not_one_process() -> None:
    readings = {name: [reading(5, 7, server_id=name)] * 3 for name in "ab"}
    assert same_processes(readings) == []


def test_one_time_outside_is_enough_to_be_another_process() -> None:
    readings = {
        "a": [reading(5, 7), reading(5, 7), reading(6, 9)],
        "b": [reading(5, 10), reading(5, 10), reading(5, 10)],
    }
    assert same_processes(readings) == []


def test_times_that_go_back_come_from_several_servers() -> None:
    assert hides_several([reading(5, 7), reading(4, 8), reading(5, 7)])
    assert not hides_several([reading(5, 7), reading(5, 8), reading(6, 8)])


def test_names_and_models_that_change_come_from_several_servers() -> None:
    assert hides_several([reading(5), reading(5, server_id="other"), reading(5)])
    assert hides_several([reading(5), reading(5, model="other"), reading(5)])
