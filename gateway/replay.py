"""What was loaded where by placement: to be loaded again on a server that comes back.

Keeps the last `config` given with each load, never the content of files. Refuses to know how models
are loaded and when a server is back. Called by `gateway.control`.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.ports import StateStore

WITH_FILES = "it was loaded with files, which are not kept"


@dataclass(frozen=True, slots=True)
class KeptLoad:
    """One model on one server; `config` is the override it was loaded with."""

    model: str
    server: str
    config: str | None = None
    with_files: bool = False


class KeptLoads:
    """The loads to be repeated. `log` is told when they cannot be kept over a restart."""

    def __init__(self, store: StateStore, *, log: Callable[..., Any]) -> None:
        self._store = store
        self._log = log
        self._loads: dict[tuple[str, str], KeptLoad] = {}
        self._writing = asyncio.Lock()

    def restore(self) -> None:
        """Take over what was kept. Raises ValueError for what cannot be used."""
        kept = (KeptLoad(**entry) for entry in self._store.read().get("loads", ()))
        self._loads = {(load.server, load.model): load for load in kept}

    async def loaded(self, load: KeptLoad) -> None:
        """Note a load. One without an override leaves an earlier override as it is on the server.

        Triton keeps the override until the model is unloaded (seen on 2.51).
        """
        key = (load.server, load.model)
        if load.config is None and not load.with_files and key in self._loads:
            return
        await self._change({**self._loads, key: load})

    async def unloaded(self, model: str, server: str) -> None:
        """Note an unload."""
        left = {key: load for key, load in self._loads.items() if key != (server, model)}
        if len(left) != len(self._loads):
            await self._change(left)

    def of(self, server: str) -> list[KeptLoad]:
        """Return the loads of one server, in the order they were given."""
        return [load for load in self._loads.values() if load.server == server]

    def view(self) -> dict[str, Any]:
        """Return what will be repeated, and what not and why."""
        loads = [
            {
                "model": load.model,
                "server": load.server,
                "config": load.config is not None,
                "replayed": not load.with_files,
                **({"reason": WITH_FILES} if load.with_files else {}),
            }
            for load in self._loads.values()
        ]
        return {"loads": loads, "survives_restart": self._store.keeps}

    async def _change(self, loads: Mapping[tuple[str, str], KeptLoad]) -> None:
        self._loads = dict(loads)
        async with self._writing:  # a slow disk must not hold up the requests
            state = {"loads": [asdict(load) for load in self._loads.values()]}
            try:
                await asyncio.to_thread(self._store.write, state)
            except OSError as error:
                self._log("loads cannot be kept over a restart", error=str(error))
