"""What every source of servers looks like, and the ways it can answer and fail."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gateway.members import Described

S_co = TypeVar("S_co", bound=Described, covariant=True)


@dataclass(frozen=True, slots=True)
class Answer(Generic[S_co]):
    """The servers a source has. Of these `leaving` are to get nothing new, by name.

    `problem` says why a part of the answer is an older one.
    """

    servers: Sequence[S_co]
    leaving: frozenset[str] = frozenset()
    problem: str | None = None


class SourceFailed(Exception):
    """A source could not be asked; the message says why, to an operator."""


class Source(Protocol[S_co]):
    """Names servers."""

    @property
    def fix(self) -> str:
        """What an operator can do when it fails."""

    @property
    def retry_s(self) -> tuple[float, float]:
        """Seconds to wait after a failure: after the first one, and at most."""

    def answers(self) -> AsyncGenerator[Answer[S_co], None]:
        """Yield the present answer and then each new one, for ever. Raises SourceFailed.

        After a failure it is called again.
        """


class MakeServer(Protocol[S_co]):
    """Describes a server that was found at a host, with its gRPC port and zone if known."""

    def __call__(self, host: str, port: int | None = None, zone: str | None = None) -> S_co:
        """Return the description."""


ReadServers = Callable[[bytes], Sequence[S_co]]
"""Reads the content of a file. Raises ValueError, which says what is wrong."""


async def first_answer(source: Source[S_co], *, timeout_s: float) -> Answer[S_co]:
    """Ask a source once. Raises SourceFailed."""
    try:
        async with asyncio.timeout(timeout_s), contextlib.aclosing(source.answers()) as answers:
            return await anext(answers)
    except TimeoutError:
        raise SourceFailed(f"no answer within {timeout_s:g} s") from None
