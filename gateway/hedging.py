"""Hedging: ask a second server when the first is slow, and take whichever answers first.

Opt-in per model, within a small budget of its own, and only where the call that lost can be
cancelled without harm. The loser's place is given back like that of any abandoned call.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from gateway.codec.types import InferReply
from gateway.faults import Fault
from gateway.tasks import spawn
from routing.budget import RetryBudget

Attempt = Callable[[], Coroutine[None, None, InferReply] | None]
"""Begins one more attempt, or returns None when no server is left for it."""


@dataclass(slots=True)
class HedgePolicy:
    """When one model is hedged: after so many seconds, as long as the budget has tokens."""

    after_s: float
    budget: RetryBudget = field(repr=False)


async def hedged(
    first: Coroutine[None, None, InferReply],
    second: Attempt,
    *,
    after_s: float,
    allowed: Callable[[], bool],
) -> InferReply:
    """Return the first answer of up to two attempts; raise the last Fault if none has one.

    `second` is begun when `first` has not ended after `after_s` and `allowed` says yes.
    """
    racing = {spawn(first, name="first of a hedged request")}
    try:
        done, _ = await asyncio.wait(racing, timeout=after_s)
        if not done and allowed() and (more := second()) is not None:
            racing.add(spawn(more, name="second of a hedged request"))
        return await _first_answer(racing)
    finally:
        for task in racing:
            task.cancel()


async def _first_answer(racing: "set[asyncio.Task[InferReply]]") -> InferReply:
    waiting = set(racing)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task.result()
        if not waiting:
            raise _fault_of(done)


def _fault_of(done: "set[asyncio.Task[InferReply]]") -> BaseException:
    errors = [task.exception() for task in done]
    faults = [error for error in errors if isinstance(error, Fault)]
    chosen = faults[0] if faults else errors[0]
    assert chosen is not None
    return chosen
