"""Sources are asked again after they fail, each by itself, and findings are logged once."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.discovery import runner
from gateway.discovery.runner import Discovery
from gateway.discovery.source import Answer, SourceFailed
from tests.serving import until
from tests.unit.gateway.discovery.test_feed import Server, World


@dataclass(frozen=True)
class Section:
    name: str
    version: int = 1


class Scripted:
    """A source that does one thing after the other, and then waits."""

    fix = "mend it"
    retry_s = (0.001, 0.002)

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.begun = 0

    async def answers(self) -> AsyncGenerator[Answer[Server], None]:
        self.begun += 1
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            yield Answer([Server(name) for name in step])
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running(
    *sources: Scripted,
) -> AsyncIterator[tuple[Discovery[Section, Server], list[World], Any]]:
    worlds = [World() for _ in sources]
    for world, source in zip(worlds, sources, strict=True):
        world.feed.source = source
    logged: list[dict[str, Any]] = []
    feeds = {f"s{number}": world.feed for number, world in enumerate(worlds)}
    discovery = Discovery[Section, Server](
        worlds[0].members if worlds else World().members,
        new_feed=lambda section: feeds[section.name],
        random=lambda: 0.5,
        log=lambda event, **fields: logged.append(fields),
    )
    discovery.follow(map(Section, feeds))
    discovery.start()
    try:
        yield discovery, worlds, logged
    finally:
        await discovery.stop()


async def test_a_source_is_asked_again_after_each_failure() -> None:
    source = Scripted("a", SourceFailed("away"), SourceFailed("away"), "ab")
    async with running(source) as (discovery, [world], logged):
        await until(lambda: world.names() == ["a", "b"])
        assert source.begun == 3
        assert [entry["code"] for entry in logged] == ["discovery-failed"]
        assert discovery.findings() == []
        assert discovery.source_of("a") == "s"
        assert [status.up for status in discovery.sources()] == [True]


async def test_a_source_with_a_fault_of_its_own_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, good = Scripted(RuntimeError("a bug"), "x"), Scripted("a")
    async with running(broken, good) as (discovery, worlds, logged):
        await discovery.first_answers()
        await until(lambda: worlds[0].names() == ["x"] and worlds[1].names() == ["a"])
    assert "RuntimeError: a bug" in logged[0]["message"]
    assert "a bug" in caplog.text


async def test_the_first_answers_are_there_when_each_source_was_tried() -> None:
    never = Scripted()
    async with running(Scripted(SourceFailed("away")), never) as (discovery, _, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await discovery.first_answers()
        never.steps = ["a"]


async def test_what_is_kept_is_looked_at_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_REVIEW_INTERVAL_S", 0.001)
    async with running(Scripted("ab", "a")) as (_, [world], _):
        await until(lambda: world.feed.status().kept == ["b"])
        world.now_s += 30
        await until(lambda: world.names() == ["a"])


async def test_nothing_is_asked_without_sources() -> None:
    async with running() as (discovery, _, _):
        await discovery.first_answers()
        assert (discovery.sources(), discovery.findings()) == ([], [])


async def test_sources_are_exchanged_and_the_same_ones_go_on() -> None:
    feeds: dict[Section, World] = {}
    members = World().members

    def new_feed(section: Section) -> Any:
        world = feeds[section] = World()
        world.feed.source = Scripted("a")
        return world.feed

    discovery = Discovery[Section, Server](
        members, new_feed=new_feed, random=lambda: 0.5, log=lambda *_, **__: None
    )
    same, old, new = Section("same"), Section("other"), Section("other", version=2)
    discovery.follow([same, old])
    discovery.start()
    await discovery.first_answers()
    assert discovery.changed([same, new, Section("third")]) == [new, Section("third")]
    discovery.follow([same, new])
    await discovery.first_answers()
    assert list(feeds) == [same, old, new]
    assert feeds[same].feed.source.begun == 1
    assert feeds[new].feed.source.begun == 1
    discovery.follow([same])
    assert [status.name for status in discovery.sources()] == ["s"]
    await discovery.stop()
