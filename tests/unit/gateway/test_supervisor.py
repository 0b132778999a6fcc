"""How workers are kept running: with children that are tasks of this loop, on a manual clock."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from gateway.workers import supervisor as module
from gateway.workers.link import Link
from gateway.workers.messages import AcceptFor, Drained, Draining, Ready, Refused, Retire, Stop
from gateway.workers.supervisor import Hooks, Supervisor, WorkerTimes
from gateway.workers.worker import State, Worker

POLL_S = 0.001


class FakeChild:
    """A child whose process is a task. What it does when it is spoken to is in `does`."""

    def __init__(self, pid: int, does: str) -> None:
        self.pid = pid
        self.does = does
        self.told: list[object] = []
        self.link, self._theirs = socket.socketpair()
        self._end: Link | None = None
        self._over = asyncio.Event()
        self._code = 0
        self._task = asyncio.create_task(self._run())

    def kill(self) -> None:
        self.end(-9)

    def end(self, code: int) -> None:
        if not self._over.is_set():
            self._code = code
            self._over.set()
            if self._end is not None:
                self._end.close()

    async def ended(self) -> int:
        await self._over.wait()
        await self._task
        return self._code

    def resident_bytes(self) -> int:
        return 0

    async def _run(self) -> None:
        async def answer() -> str:
            return f"from {self.pid}"

        services = {"name": answer}
        end = self._end = await Link.open(self._theirs, on_message=self._take, services=services)
        if not self._over.is_set():
            await end.run()
        await end.finish()

    def _take(self, message: object) -> None:
        self.told.append(message)
        assert self._end is not None
        if message == "first":
            if self.does == "refuse":
                self._end.tell(Refused("no such file"))
                asyncio.get_running_loop().call_soon(self.end, 1)
            elif self.does == "crash":
                self.end(3)
            elif self.does != "mute":
                self._end.tell(Ready())
        elif isinstance(message, Stop | Retire) and self.does != "stubborn":
            self._end.tell(Drained(2))
            asyncio.get_running_loop().call_soon(self.end, 0)


class Host:
    """A supervisor, its children in the order of their start, and what was logged."""

    def __init__(self, slots: int, *, start_s: float = 5.0, end_s: float = 5.0) -> None:
        self.children: list[FakeChild] = []
        self.does: Callable[[int], str] = lambda number: "work"
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ended: list[Worker] = []
        self.now_s = 100.0
        self.supervisor = Supervisor(
            [socket.socket() for _ in range(slots)],
            start_child=self._start,
            hooks=Hooks(
                first=lambda worker: "first",
                on_message=lambda worker, message: None,
                on_end=self.ended.append,
            ),
            times=lambda: WorkerTimes(start_s, end_s),
            log=self,
            clock=lambda: self.now_s,
        )

    def _start(self, _: Sequence[socket.socket]) -> Any:
        number = len(self.children)
        child = FakeChild(1000 + number, self.does(number))
        self.children.append(child)
        return child

    def info(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    warning = info

    def logged(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]

    @property
    def states(self) -> list[State]:
        return [worker.state for worker in self.supervisor.workers]

    def accepts(self, child: int) -> list[frozenset[int]]:
        told = self.children[child].told
        return [message.slots for message in told if isinstance(message, AcceptFor)]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def host(slots: int = 2, **times: float) -> AsyncIterator[Host]:
    made = Host(slots, **times)
    try:
        yield made
    finally:
        made.supervisor.stop_accepting()
        for child in made.children:
            child.does = "work"
            child.kill()
        await made.supervisor.close(timeout_s=5)


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Do not wait between restarts; give what would have been waited."""
    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds != POLL_S:
            waited.append(seconds)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return waited


async def test_every_slot_gets_a_worker() -> None:
    async with host(3) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        assert made.states == [State.READY] * 3
        assert sorted(worker.slot for worker in made.supervisor.workers) == [0, 1, 2]
        assert made.supervisor.not_serving() is None


async def test_before_one_is_ready_nothing_is_served() -> None:
    async with host(1) as made:
        made.does = lambda number: "mute"
        await made.supervisor.start()
        assert made.supervisor.not_serving() == "no worker is ready"


async def test_a_crashed_worker_is_started_again_at_once(no_backoff: list[float]) -> None:
    async with host(2) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        made.children[0].end(-11)
        await until(lambda: len(made.children) == 3 and made.supervisor.ready == 2)
        (crash,) = made.logged("worker ended")
        assert crash["reason"] == "killed by signal 11"
        assert (crash["slot"], crash["pid"], crash["restart_in_s"]) == (0, 1000, 0.0)
        assert [worker.child.pid for worker in made.ended] == [1000]
        assert made.supervisor.crashes == 1


async def test_a_crash_loop_backs_off(no_backoff: list[float]) -> None:
    async with host(1) as made:
        made.does = lambda number: "crash" if number < 9 else "work"
        await made.supervisor.start()
        await made.supervisor.complete()
        waits = [event["restart_in_s"] for event in made.logged("worker ended")]
        assert waits == [0, 1, 2, 4, 8, 16, 30, 30, 30]
        assert no_backoff == waits
        assert {event["reason"] for event in made.logged("worker ended")} == {"exit code 3"}


async def test_others_accept_for_a_slot_without_a_worker(no_backoff: list[float]) -> None:
    async with host(3) as made:
        made.does = lambda number: "mute" if number == 3 else "work"
        await made.supervisor.start()
        await made.supervisor.complete()
        made.children[1].end(1)
        await until(lambda: len(made.children) == 4 and made.accepts(0)[-1:] == [{1}])
        made.children[3].end(1)  # which was to replace it, and never got ready
        await until(lambda: made.supervisor.ready == 3)
        await until(lambda: made.accepts(0)[-1] == frozenset())
        assert not any(slots for slots in made.accepts(2))


async def test_a_restart_replaces_one_after_the_other() -> None:
    async with host(2) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        roll = await made.supervisor.restart()
        assert roll.view() == {"of": 2, "done": 2, "running": False, "failed": None}
        assert made.states == [State.READY] * 2
        assert {worker.generation for worker in made.supervisor.workers} == {2}
        for old in made.children[:2]:
            assert isinstance(old.told[-1], Retire)
        assert made.logged("worker ended") == []
        assert made.logged("restarted") == [{"workers": 2}]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("refuse", "no such file"),
        ("crash", "exit code 3"),
        ("mute", "not ready within 0.05 s"),
    ],
)
async def test_a_replacement_that_is_never_ready_leaves_the_old_one(does: str, why: str) -> None:
    async with host(2, start_s=0.05) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        made.does = lambda number: does
        roll = await made.supervisor.restart()
        text = f"the new worker did not become ready ({why}); the old one stays"
        assert roll.view() == {"of": 2, "done": 0, "running": False, "failed": text}
        assert made.logged("restart failed") == [{"reason": text, "slot": 0}]
        assert made.states == [State.READY] * 2
        assert not any(isinstance(m, Retire) for child in made.children[:2] for m in child.told)


async def test_a_replaced_worker_that_does_not_end_is_killed() -> None:
    async with host(1, end_s=0.05) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        made.children[0].does = "stubborn"
        roll = await made.supervisor.restart()
        assert roll.done == 1
        assert made.ended[0].exit_code == -9
        assert made.supervisor.ready == 1


async def test_a_worker_that_says_nothing_any_more_is_replaced(
    no_backoff: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK_INTERVAL_S", 0.01)
    async with host(1) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        made.now_s += 31
        await until(lambda: len(made.children) == 2 and made.supervisor.ready == 1)
        assert made.logged("worker ended")[0]["reason"] == "nothing was heard of it for 30 s"


async def test_at_the_end_every_worker_is_told_and_waited_for() -> None:
    async with host(2) as made:
        await made.supervisor.start()
        await made.supervisor.complete()
        made.supervisor.drain()
        await until(lambda: all(isinstance(c.told[-1], Draining) for c in made.children))
        made.supervisor.stop_accepting()
        await made.supervisor.close(timeout_s=5)
        assert made.supervisor.workers == ()
        assert made.supervisor.left == 4
        assert len(made.children) == 2


async def test_at_the_end_stubborn_workers_are_killed() -> None:
    async with host(1) as made:
        made.does = lambda number: "stubborn"
        await made.supervisor.start()
        await made.supervisor.complete()
        made.supervisor.stop_accepting()
        await made.supervisor.close(timeout_s=0.01)
        assert made.ended[0].exit_code == -9


async def test_questions_go_to_all_that_have_started() -> None:
    async with host(3) as made:
        made.does = lambda number: "mute" if number == 2 else "work"
        await made.supervisor.start()
        await until(lambda: made.supervisor.ready == 2)
        said = await made.supervisor.ask("name", timeout_s=5)
        assert sorted(said.values()) == ["from 1000", "from 1001"]
        assert await made.supervisor.ask("none", timeout_s=5) == {}
