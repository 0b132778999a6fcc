"""Filter, pick, and hold what was picked: the mutable side of routing.

`Pool` knows how much work each server has from this gateway. `pick` yields a `Lease`, which is
settled once, whatever happens to the request. The pipeline is the only caller.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from routing.balancing import Balancer
from routing.errors import NoReadyEndpoint
from routing.types import Server


class ServerLoad:
    """The work one server has from this gateway. Only `Pool` and `Lease` change it."""

    __slots__ = ("calls", "capacity", "detached", "in_flight", "last_reply_s", "name")

    def __init__(self, server: Server) -> None:
        self.name = server.name
        self.capacity = server.capacity
        self.in_flight = 0
        self.calls = 0
        self.detached = 0
        self.last_reply_s = float("-inf")

    def __repr__(self) -> str:
        return (
            f"ServerLoad({self.name}: {self.calls} calls, {self.in_flight} rows, "
            f"{self.detached} detached)"
        )


class Lease:
    """One server's place, held from the pick until the work there has really ended.

    A call nobody waits for any more but which still runs on the server is *detached*: it keeps its
    rows in flight, so that hanging up is no way round the load of a server.
    """

    __slots__ = ("_detached", "_load", "_pool", "_rows")

    def __init__(self, pool: "Pool", load: ServerLoad, rows: int) -> None:
        self._pool: Pool | None = pool
        self._load = load
        self._rows = rows
        self._detached = False
        load.calls += 1
        load.in_flight += rows

    @property
    def server(self) -> str:
        """The name of the server this place is on."""
        return self._load.name

    def detach(self) -> None:
        """Note that nobody waits for this call any more although it still runs."""
        if self._pool is not None and not self._detached:
            self._detached = True
            self._load.detached += 1
            self._pool.detached_changed(self._load)

    def release(self) -> None:
        """Give the place back. Only the first call has an effect."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        self._load.calls -= 1
        self._load.in_flight -= self._rows
        if self._detached:
            self._load.detached -= 1
            pool.detached_changed(self._load)


class Pool:
    """The servers' loads and the choice between them.

    `random` yields floats in [0, 1). A server with `max_detached_calls` detached calls is
    saturated: it gets no new ones until some of them have ended.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        balancer: Balancer,
        random: Callable[[], float],
        max_detached_calls: int,
    ) -> None:
        self.loads = {server.name: ServerLoad(server) for server in servers}
        self._balancer = balancer
        self._random = random
        self._max_detached_calls = max_detached_calls
        self._saturated: set[str] = set()

    def pick(self, ready: Sequence[str], *, tried: Collection[str] = (), rows: int = 1) -> Lease:
        """Choose one of the `ready` servers that was not tried and take a place on it.

        Raises NoReadyEndpoint when none is left.
        """
        names = ready
        if tried or self._saturated:
            names = [n for n in ready if n not in tried and n not in self._saturated]
        if not names:
            raise self._nothing_left(ready, tried)
        loads = [self.loads[name] for name in names]
        return Lease(self, loads[self._balancer.pick(loads, self._random)], rows)

    def pick_pinned(self, ready: Sequence[str], *, rows: int = 1) -> Lease:
        """Take a place on the first of the `ready` servers by name, whatever its load.

        For requests that depend on state in one server: as long as the set of ready servers stays
        the same, all of them meet there.
        """
        if not ready:
            raise self._nothing_left(ready, ())
        return Lease(self, self.loads[min(ready)], rows)

    def detached_changed(self, load: ServerLoad) -> None:
        """Note a change in a server's number of detached calls; called by its leases."""
        if load.detached >= self._max_detached_calls:
            self._saturated.add(load.name)
        else:
            self._saturated.discard(load.name)

    def _nothing_left(self, ready: Sequence[str], tried: Collection[str]) -> NoReadyEndpoint:
        saturated = any(name in self._saturated and name not in tried for name in ready)
        if saturated:
            return NoReadyEndpoint("every server that holds the model is saturated", saturated=True)
        return NoReadyEndpoint("no server is ready to take the request")
