"""The link between supervisor and worker: both ends, over a real socket pair."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.faults import Fault
from gateway.names import UnknownName
from gateway.workers.link import Link, LinkClosed, RemoteError


class End:
    """One end, and what it was told."""

    def __init__(self, link: Link, told: list[object], running: asyncio.Task[None]) -> None:
        self.link = link
        self.told = told
        self.running = running


async def double(value: int) -> int:
    return 2 * value


async def raise_(error: Exception) -> None:
    raise error


async def hang() -> None:
    await asyncio.Event().wait()


async def deadline() -> None:
    raise Fault.deadline_passed()


SERVICES = {"double": double, "raise": raise_, "hang": hang, "deadline": deadline}


async def _end(sock: socket.socket) -> End:
    told: list[object] = []
    link = await Link.open(sock, on_message=told.append, services=SERVICES)
    return End(link, told, asyncio.create_task(link.run()))


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[tuple[End, End]]:
    one, other = [await _end(sock) for sock in socket.socketpair()]
    try:
        yield one, other
    finally:
        for end in (one, other):
            await end.link.finish()
            await end.running


async def test_messages_arrive_whole_and_in_order() -> None:
    async with linked() as (one, other):
        sent: list[Any] = [("small", 1), b"x" * 3_000_000, {"last": None}]
        for message in sent:
            one.link.tell(message)
        await other.link.ask("double", 1, timeout_s=5)  # answered by `one` after all of them
        assert other.told == sent


async def test_a_service_is_called_behind_what_was_told_before() -> None:
    async with linked() as (one, other):
        asking = [asyncio.create_task(one.link.ask("double", n, timeout_s=5)) for n in range(3)]
        assert await asyncio.gather(*asking) == [0, 2, 4]
        assert await other.link.ask("double", 5, timeout_s=5) == 10


@pytest.mark.parametrize("error", [UnknownName("no such thing"), ValueError("bad")])
async def test_an_error_arrives_as_itself(error: Exception) -> None:
    async with linked() as (one, _):
        with pytest.raises(type(error), match=str(error)):
            await one.link.ask("raise", error, timeout_s=5)


async def test_an_error_that_cannot_travel_arrives_as_text() -> None:
    async with linked() as (one, _):
        with pytest.raises(RemoteError, match="Fault: the deadline of the request has passed"):
            await one.link.ask("deadline", timeout_s=5)
        with pytest.raises(RemoteError, match="there is no service 'none'"):
            await one.link.ask("none", timeout_s=5)


async def test_a_late_answer_is_a_timeout_and_does_no_harm() -> None:
    async with linked() as (one, other):
        with pytest.raises(TimeoutError):
            await one.link.ask("hang", timeout_s=0.001)
        assert await one.link.ask("double", 1, timeout_s=5) == 2
        assert not other.link.closed


async def test_questions_fail_when_the_other_side_is_gone() -> None:
    async with linked() as (one, other):
        asking = asyncio.create_task(one.link.ask("hang", timeout_s=5))
        await one.link.ask("double", 1, timeout_s=5)
        other.link.close()
        with pytest.raises(LinkClosed):
            await asking
        await one.running
        assert one.link.closed
        one.link.tell("nobody hears this")
        with pytest.raises(LinkClosed):
            await one.link.ask("double", 1, timeout_s=5)


async def test_what_was_told_before_the_end_still_arrives() -> None:
    async with linked() as (one, other):
        one.link.tell(b"x" * 5_000_000)
        one.link.tell("last")
        await asyncio.gather(one.link.finish(), other.running)
        assert other.told[-1] == "last"


async def test_a_side_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.workers.link._MOST_WAITING_BYTES", 1000)
    ours, theirs = socket.socketpair()
    link = await Link.open(ours, on_message=print, services={})
    for _ in range(10):
        link.tell(b"x" * 1_000_000)
    assert link.closed
    theirs.close()
    await link.finish()
