"""Background tasks are named, kept, and fail loudly - except for faults, which are told."""

import asyncio
import gc
import logging

import pytest

from gateway.faults import Fault
from gateway.tasks import spawn, stop


async def test_a_result_may_be_awaited() -> None:
    async def work() -> int:
        return 7

    task = spawn(work(), name="work")
    assert (task.get_name(), await task) == ("work", 7)


async def test_a_task_nobody_holds_is_kept() -> None:
    done = asyncio.Event()
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    spawn(work(), name="work")
    gc.collect()
    go.set()
    await asyncio.wait_for(done.wait(), 1)


async def test_a_failure_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError("boom")

    await asyncio.wait([spawn(work(), name="the work")])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "task the work failed")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_fault_and_a_cancellation_are_not_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse() -> None:
        raise Fault.invalid("no")

    with pytest.raises(Fault):
        await spawn(refuse(), name="refuse")
    waiting = spawn(asyncio.sleep(60), name="wait")
    await stop(waiting)
    assert waiting.cancelled()
    assert caplog.records == []


async def test_stopping_waits_for_what_a_task_still_does() -> None:
    cleaned = []
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)
            raise ValueError("on the way out")

    tasks = [spawn(work(), name="work")]
    await started.wait()
    logging.getLogger("gateway.tasks").disabled = True
    try:
        await stop(*tasks)
        await asyncio.sleep(0)
    finally:
        logging.getLogger("gateway.tasks").disabled = False
    assert cleaned == [1]
