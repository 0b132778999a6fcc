"""Hedging: ask a second server when the first is slow, and take whichever answers first.

Opt-in per model, within a small budget of its own, and only where the call that lost can be
cancelled without harm. The loser's place is given back like that of any abandoned call.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from gateway.codec.types import InferReply
from gateway.faults import Fault
from gateway.tasks import spawn
from routing.budget import RetryBudget

Attempt = Callable[[], Coroutine[None, None, InferReply] | None]
"""Begins one more attempt, or returns None when none may be made or no server is left for it."""


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
) -> tuple[InferReply, bool]:
    """Return the first answer of up to two attempts, and whether it is the second one's.

    `second` is begun when `first` has not ended after `after_s`. Raises the last Fault if there is
    no answer.
    """
    racing = [spawn(first, name="first of a hedged request")]
    try:
        done, _ = await asyncio.wait(racing, timeout=after_s)
        if not done and (more := second()) is not None:
            racing.append(spawn(more, name="second of a hedged request"))
        answered = await _first_answer(racing)
        return answered.result(), answered is not racing[0]
    finally:
        for task in racing:
            task.cancel()


async def _first_answer(
    racing: "Sequence[asyncio.Task[InferReply]]",
) -> "asyncio.Task[InferReply]":
    waiting = set(racing)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in racing if task in done]  # two may have ended: then the first
        for task in ended:
            if task.exception() is None:
                return task
        if not waiting:
            raise _fault_of(ended)


def _fault_of(done: "Sequence[asyncio.Task[InferReply]]") -> BaseException:
    errors = [task.exception() for task in done]
    faults = [error for error in errors if isinstance(error, Fault)]
    chosen = faults[0] if faults else errors[0]
    assert chosen is not None
    return chosen
