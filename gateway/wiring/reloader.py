"""Takes up a changed configuration without losing a request.

Read and judge, build a core beside the one in force, let its new servers answer once, exchange one
reference. Whatever fails before that leaves everything as it was, and a configuration none of whose
servers answers is a failure while others do. Asked by the ops listener, by
SIGHUP, and by its own look at the files; one reload at a time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from config.compare import differences
from config.discovery import Discovery as DiscoveryConfig
from config.models import Config
from config.servers import Server
from config.tree import ConfigError
from gateway.discovery.runner import Discovery
from gateway.ports import ConfigRefused, ConfigState
from gateway.tasks import spawn, stop
from gateway.wiring.clock import WALL_CLOCK, now_text
from gateway.wiring.core import Core, Surroundings, build_core
from gateway.wiring.cores import Cores
from gateway.wiring.plan import Plan, changes_nothing, plan_of
from gateway.wiring.source import ConfigSource
from gateway.wiring.sources import found_by

T = TypeVar("T")

_log = logging.getLogger(__name__)

BY_FILES = "change of the files"


class Reloader:
    """See `gateway.ports.ConfigDesk` and `gateway.lifecycle.Background`.

    `source` is None for a gateway that was not started from files. `apply` is called with each
    core that is about to come into force, for what the listeners take from it; it may raise
    OSError.
    """

    def __init__(
        self,
        cores: Cores,
        around: Surroundings,
        source: ConfigSource | None,
        *,
        discovery: Discovery[DiscoveryConfig, Server],
        apply: Callable[[Core], None],
    ) -> None:
        self._cores = cores
        self._around = around
        self._source = source
        self._discovery = discovery
        self._apply = apply
        self._lock = asyncio.Lock()
        self._loaded_at, self._loaded_s = now_text(), WALL_CLOCK()
        self._last_error: dict[str, Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begin to look after the files."""
        self._spawn(self._watch())

    async def stop(self) -> None:
        """Take up nothing any more; a reload under way is dropped."""
        await stop(*self._tasks)

    def state(self) -> ConfigState:
        """Return what is in force, for the metrics."""
        ok = self._last_error is None
        return ConfigState(self._cores.current.digest, self._loaded_s, last_reload_ok=ok)

    def view(self) -> dict[str, Any]:
        """Return what is in force, since when, and what went wrong since."""
        core = self._cores.current
        waiting = differences(core.config, core.written)
        return {
            "hash": core.digest,
            "loaded_at": self._loaded_at,
            "needs_restart": [found.key for found in waiting],
            "last_error": self._last_error,
            "draining": [_draining(old) for old in self._cores.draining],
        }

    async def plan(self) -> Plan:
        """Return what a reload would change now. Raises ConfigRefused."""
        _, plan = await self._judge(self._source_or_refuse().look)
        return plan

    def reload_soon(self, *, by: str) -> None:
        """Reload in the background; what comes of it is in the log and in the view."""
        self._spawn(self._reload(by))

    async def reload(self, *, by: str) -> dict[str, Any]:
        """Put what the files say in force and return what changed. Raises ConfigRefused."""
        done = await self._spawn(self._reload(by))
        if isinstance(done, ConfigRefused):
            raise done
        return done

    async def _reload(self, by: str) -> dict[str, Any] | ConfigRefused:
        if self._around.readiness.draining():
            return ConfigRefused(["the gateway is shutting down"])
        await self._around.readiness.ready.wait()
        async with self._lock:
            try:
                plan = await self._take_up()
            except ConfigRefused as refused:
                return self._noted(by, refused)
            except Exception as error:
                _log.exception("the configuration could not be taken up")
                return self._noted(by, ConfigRefused([f"internal error of the gateway: {error!r}"]))
        self._loaded_at, self._loaded_s = now_text(), WALL_CLOCK()
        self._last_error = None
        told = {name: found for name, found in plan.items() if name not in ("from", "to")}
        self._cores.info("configuration in force", by=by, hash=plan["to"], **told)
        return {**plan, "changed": not changes_nothing(plan)}

    async def _take_up(self) -> Plan:
        source = self._source_or_refuse()
        written, plan = await self._judge(source.read)
        current = self._cores.current
        found = await self._new_sources(written)
        with _refusing():
            new = build_core(written, self._around, found=found, before=current)
        try:
            new.watcher.start()
            await _first_answers(new)
            _refuse_if_dead(new, self._cores.current)
            with _refusing():
                self._apply(new)
            self._cores.replace(new)
            self._adopt(new)
        except BaseException:
            await self._cores.discard(new)
            raise
        return plan

    async def _new_sources(self, written: Config) -> Mapping[str, Sequence[Server]]:
        """Ask sources that are new or changed, so that their servers are there from the start."""
        changed = self._discovery.changed(written.discovery)
        timeout_s = written.reload.first_probe_s
        return await found_by(changed, self._around.environ, timeout_s=timeout_s)

    def _adopt(self, new: Core) -> None:
        """Have the sources work for the new core, and take up what they said meanwhile."""
        members = self._around.members
        members.note(new.said)
        new.roster.catch_up(members.replay())
        self._discovery.follow(new.config.discovery)

    async def _judge(self, read: Callable[[], Config]) -> tuple[Config, Plan]:
        # Reading takes a while; requests go on meanwhile.
        with _refusing():
            written = await asyncio.to_thread(read)
            return written, plan_of(self._cores.current, written, self._around)

    def _source_or_refuse(self) -> ConfigSource:
        if self._source is None:
            raise ConfigRefused(["this gateway was started without a file to read again"])
        return self._source

    async def _watch(self) -> None:
        while self._source is not None:
            settings = self._cores.current.config.reload
            await asyncio.sleep(settings.interval_s)
            if settings.watch and await asyncio.to_thread(self._source.has_changed):
                await self._reload(BY_FILES)

    def _noted(self, by: str, refused: ConfigRefused) -> ConfigRefused:
        problems = list(refused.problems)
        self._last_error = {"at": now_text(), "by": by, "problems": problems}
        self._cores.warning("configuration refused", by=by, problems=problems)
        return refused

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = spawn(work, name="reload of the configuration")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigRefused([str(problem) for problem in error.problems]) from None
    except (OSError, ValueError) as error:  # a secret or certificate that has just gone
        raise ConfigRefused([str(error)]) from None


async def _first_answers(core: Core) -> None:
    """Let the servers that are new answer once, so that the first requests find their models."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(core.config.reload.first_probe_s):
            await core.watcher.first_pass()


def _refuse_if_dead(new: Core, old: Core) -> None:
    """Rather keep a fleet that serves than one in which nobody answers."""
    before, after = old.view.fleet.snapshot.servers, new.view.fleet.snapshot.servers
    up = [name for name, row in before.items() if row.up]
    if not up or not new.kept.keys().isdisjoint(up) or any(row.up for row in after.values()):
        return
    raise ConfigRefused(
        ["none of its servers answers, and so far some do - correct their addresses and keys"]
        + [f"{name}: {row.reason}" for name, row in after.items() if name not in new.kept]
    )


def _draining(core: Core) -> dict[str, Any]:
    return {"hash": core.digest, "requests": core.api.in_flight, "calls": core.view.pool.leases}
