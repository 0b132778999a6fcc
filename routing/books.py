"""The loads of all servers and models: which there are, and where the workers' table has them.

Servers come and go here; the books of one pool can be carried on by another. Used by
`routing.pool`, which decides by them.
"""

from collections.abc import Collection, Iterable, Mapping

from routing.endpoint import ModelLoads, Roster, ServerLoad
from routing.host import HostView
from routing.shared import HostTable, Pair
from routing.types import Server


class Books:
    """`loads` has those of the servers by name, `host` this worker's part in `table` if any.

    `limits` are the rows in flight on a server that are laid down for single models; each of
    so many `workers` has its part of any limit.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        table: HostTable | None,
        *,
        limits: Mapping[str, int],
        workers: int,
    ) -> None:
        self._table = table
        self._limits = limits
        self._own_share = 1 / workers
        self._roster = Roster()
        self._models: dict[str, ModelLoads] = {}
        self.host = HostView(table) if table is not None else None
        self.loads = {server.name: self._roster.add(server, table) for server in servers}

    def model(self, name: str) -> ModelLoads:
        """Return the loads of a model, making them at first use."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelLoads(
                name,
                self._roster,
                self._table,
                limit=self._limits.get(name),
                own_share=self._own_share,
            )
            for load in self.loads.values():
                self._assign(found, load)
        return found

    def models(self) -> Collection[ModelLoads]:
        """Return the loads of every model that was asked for."""
        return self._models.values()

    def add(self, server: Server) -> None:
        """Take a server in, with no work on it and no history."""
        self.loads[server.name] = self._roster.add(server, self._table)
        self._fit([self.loads[server.name]])

    def update(self, server: Server) -> None:
        """Take over what is configured differently now; the server's work and history stay."""
        self._roster.update(self.loads[server.name], server)
        self._fit(())

    def remove(self, name: str) -> None:
        """Forget a server. What is under way there is still counted to its end."""
        load = self.loads.pop(name)
        load.assign(None)
        for loads in self._models.values():
            loads.assign(load.place, None)
        self._roster.retire(load)

    def take_over(self, before: "Books", kept: Collection[str]) -> None:
        """Carry on the books of `before` for the `kept` servers. Those also count there still."""
        self._roster, self._models, self.host = before._roster, dict(before._models), before.host
        for name, load in self.loads.items():
            if name in kept:
                self.loads[name] = before.loads[name]
                self._roster.update(self.loads[name], load.server)
            else:
                self.loads[name] = self._roster.add(load.server, self._table)
        self._fit([load for name, load in self.loads.items() if name not in kept])
        for name, loads in self._models.items():
            loads.limits.fix(self._limits.get(name))

    def assign(self, slots: Mapping[Pair, int | None]) -> None:
        """Take note of slots in the table; None takes one back."""
        if self.host is None:
            return
        for (server, model), slot in slots.items():
            self.host.assign((server, model), slot)
            load = self.loads.get(server)
            if load is not None and model is None:
                load.assign(slot)
            elif load is not None and model in self._models:
                self._models[model].assign(load.place, slot)

    def holds(self, load: ServerLoad) -> bool:
        """Whether this is the load of a server that is still there."""
        return self.loads.get(load.name) is load

    def _fit(self, new: Collection[ServerLoad]) -> None:
        if self.host is not None:
            for load in new:
                load.assign(self.host.slot(load.name, None))
        for loads in self._models.values():
            loads.fit()
            for load in new:
                loads.renew(load.place)
                self._assign(loads, load)

    def _assign(self, loads: ModelLoads, load: ServerLoad) -> None:
        if self.host is not None:
            loads.assign(load.place, self.host.slot(load.name, loads.model))
