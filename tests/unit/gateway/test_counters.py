"""Who writes where in the table that all workers of a host count in."""

from gateway.workers.counters import Columns, Slots
from routing.fleet import FleetTable, ModelVersion
from routing.shared import HostTable, TableSize
from routing.types import Server

SIZE = TableSize(workers=2, pairs=2, servers=3)


def table(*servers: str) -> FleetTable:
    return FleetTable([Server(name) for name in servers], quorum=0.5, recently_ready_s=300.0)


def ready(fleet: FleetTable, server: str, *models: str) -> None:
    keys = {ModelVersion(model, 1) for model in models}
    fleet.observe_ready(server, keys, asked_s=1.0, now_s=1.0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_every_process_has_a_column_of_its_own_and_leaves_it_empty() -> None:
    memory = bytearray(SIZE.size_bytes)
    columns = Columns(HostTable(memory, SIZE, worker=0), SIZE.workers)
    assert (columns.take(7), columns.take(8)) == (0, 1)
    second = HostTable(memory, SIZE, worker=1)
    second.rows.put(0, 5)
    columns.give_back(8)
    assert second.rows.total(0) == 0
    assert columns.take(9) == 1
    columns.give_back(10)  # one that ended before it had any


def test_servers_and_models_on_them_get_slots_once() -> None:
    slots, fleet = Slots(SIZE, clock=Clock()), table("a", "b")
    assert slots.follow(fleet.snapshot) == {("a", None): 0, ("b", None): 1}
    ready(fleet, "a", "m")
    assert slots.follow(fleet.snapshot) == {("a", "m"): 0}
    ready(fleet, "a")  # unloaded: it may come back
    ready(fleet, "b", "m")
    assert slots.follow(fleet.snapshot) == {("b", "m"): 1}
    assert slots.follow(fleet.snapshot) == {}
    assert slots.given == {("a", None): 0, ("b", None): 1, ("a", "m"): 0, ("b", "m"): 1}


def test_slots_of_a_server_that_is_gone_are_used_again_when_every_worker_knows() -> None:
    clock = Clock()
    slots, fleet = Slots(SIZE, clock=clock), table("a", "b")
    ready(fleet, "a", "m")
    ready(fleet, "b", "m")
    slots.follow(fleet.snapshot)
    fleet.remove("a", now_s=2.0)
    assert slots.follow(fleet.snapshot) == {("a", None): None, ("a", "m"): None}
    fleet.add(Server("c"), now_s=3.0)
    ready(fleet, "c", "m")
    assert slots.follow(fleet.snapshot) == {("c", None): 2}  # its model finds no room yet
    clock.now_s += 60.0
    fleet.add(Server("d"), now_s=4.0)
    ready(fleet, "d", "m")
    assert slots.follow(fleet.snapshot) == {("d", None): 0, ("d", "m"): 0}
