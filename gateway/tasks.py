"""spawn(): the one caller of create_task.

The event loop keeps only weak references to tasks, and a task nobody awaits swallows its error.
Every background task of the gateway is named, kept and reported here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.faults import Fault

T = TypeVar("T")

_log = logging.getLogger(__name__)
_running: set["asyncio.Task[Any]"] = set()


def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
    """Run `coroutine` in the background; its failure is logged, its result may be awaited."""
    task = asyncio.create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


async def stop(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and wait until each has ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def _finished(task: "asyncio.Task[Any]") -> None:
    _running.discard(task)
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Fault):  # a Fault is told to who awaits it
        _log.error("task %s failed", task.get_name(), exc_info=error)
