"""A server file is taken over as a whole or not at all, whatever happens to it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config.loader import load_text
from config.servers import Server
from gateway.discovery.source import Answer, SourceFailed
from gateway.wiring.sources import source_of

CONFIG = "discovery: [{name: f, file: {path: %s, interval_s: 0.01}}]"
A, B = "- {name: a, grpc: 'a:1'}\n", "- {name: b, grpc: 'b:1'}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "servers.yaml"


@contextlib.asynccontextmanager
async def watching(path: Path) -> AsyncIterator["Watching"]:
    watching = Watching(path)
    try:
        yield watching
    finally:
        await watching.answers.aclose()


class Watching:
    """The source that a configuration names; begins anew after a failure, like the runner."""

    def __init__(self, path: Path) -> None:
        [section] = load_text(CONFIG % path, "gateway.yaml").discovery
        self.source = source_of(section)
        self.answers = self.source.answers()

    async def names(self) -> list[str]:
        async with asyncio.timeout(10):
            answer: Answer[Server] = await anext(self.answers)
        return [server.name for server in answer.servers]

    async def failure(self) -> str:
        with pytest.raises(SourceFailed) as caught:
            await self.names()
        self.answers = self.source.answers()
        return str(caught.value)

    async def silent(self) -> bool:
        """Whether no new answer comes, although the file is looked at several times."""
        waiting = asyncio.ensure_future(self.names())
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        self.answers = self.source.answers()
        return not done


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


async def test_a_replaced_file_is_read_again(path: Path) -> None:
    path.write_text(A)
    async with watching(path) as file:
        assert await file.names() == ["a"]
        replace(path, A + B)
        assert await file.names() == ["a", "b"]


async def test_a_change_within_one_tick_of_the_clock_is_seen(path: Path) -> None:
    """Same size, same time: only the content tells."""
    path.write_text(A)
    before = path.stat()
    async with watching(path) as file:
        assert await file.names() == ["a"]
        path.write_text(B)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert await file.names() == ["b"]


async def test_a_file_that_stays_as_it_is_is_no_new_answer(path: Path) -> None:
    path.write_text(A)
    async with watching(path) as file:
        assert await file.names() == ["a"]
        path.touch()
        assert await file.silent()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        (A + "- {name: b, gr", "not valid YAML"),
        ('[{"targets": ["a:1"', "not valid YAML"),
        ("\x00\x01\x02", "a control character"),
        ("- {name: b}", "grpc: missing"),
        ("- {name: b, grpc: 'b:1', capazity: 2}", "did you mean 'capacity'?"),
        (A + A, "is also the name of the server"),
        ("x: " + "y" * 1_100_000, "larger than"),
    ],
)
async def test_what_is_not_a_whole_list_of_servers_is_a_failure(
    path: Path, text: str, said: str
) -> None:
    path.write_text(A)
    async with watching(path) as file:
        assert await file.names() == ["a"]
        path.write_text(text)
        assert said in await file.failure()
        replace(path, B)
        assert await file.names() == ["b"]


async def test_a_file_that_is_gone_is_a_failure_until_it_is_back(path: Path) -> None:
    async with watching(path) as file:
        assert "cannot be read: No such file" in await file.failure()
        path.write_text(A)
        assert await file.names() == ["a"]
        path.unlink()
        assert "cannot be read: No such file" in await file.failure()
        path.mkdir()
        assert "cannot be read: Is a directory" in await file.failure()


async def test_an_empty_list_is_an_answer(path: Path) -> None:
    path.write_text("[]")
    async with watching(path) as file:
        assert await file.names() == []
