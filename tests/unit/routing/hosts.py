"""Several workers of one host: pools with one table, and a link that carries their news."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from routing.health.news import News
from routing.pool import Pool
from routing.shared import HostTable, Pair, TableSize
from tests.unit.routing.building import NOW_S, pool_of


def slots(servers: Sequence[str], models: Sequence[str]) -> dict[Pair, int | None]:
    """Number servers, and pairs of a server and a model."""
    pairs = [(server, model) for server in servers for model in models]
    found: dict[Pair, int | None] = {pair: slot for slot, pair in enumerate(pairs)}
    return found | {(server, None): slot for slot, server in enumerate(servers)}


class Host:
    """Workers with the same servers. News wait in `inbox`, by worker, until they are delivered."""

    def __init__(
        self,
        servers: Sequence[str] = "abc",
        *,
        workers: int = 2,
        models: Sequence[str] = ("m", "n"),
        random: Callable[[], float] = lambda: 0.0,
        **settings: Any,
    ) -> None:
        self.size = TableSize(
            workers=workers, pairs=len(servers) * len(models), servers=len(servers)
        )
        self.memory = bytearray(self.size.size_bytes)
        self.slots = slots(servers, models)
        self.inbox: list[deque[News]] = [deque() for _ in range(workers)]
        self._new = lambda number: pool_of(
            servers, random=random, table=self.table(number), workers=workers, **settings
        )
        self.pools = [self.start(number) for number in range(workers)]

    def table(self, number: int) -> HostTable:
        return HostTable(self.memory, self.size, worker=number)

    def start(self, number: int) -> Pool:
        """Return the pool of a worker that has just started."""
        pool = self._new(number)
        pool.assign(self.slots)
        return pool

    def replace(self, number: int) -> Pool:
        """Let a worker die and another take its number."""
        self.table(number).clear(number)
        self.inbox[number].clear()
        self.pools[number] = pool = self.start(number)
        for other in self.pools[:number] + self.pools[number + 1 :]:
            pool.learn_foreign(other.standing_news(), NOW_S)
        return pool

    def tell(self, number: int) -> list[News]:
        """Let a worker put its news into the inboxes of the others."""
        news = self.pools[number].news()
        for other, inbox in enumerate(self.inbox):
            if other != number:
                inbox.extend(news)
        return news

    def deliver(self, number: int, now_s: float = NOW_S) -> None:
        """Let a worker hear what waits for it."""
        self.pools[number].learn_foreign(tuple(self.inbox[number]), now_s)
        self.inbox[number].clear()

    def exchange(self, now_s: float = NOW_S, rounds: int = 1) -> int:
        """Let all workers tell and hear; return how many rows there were."""
        rows = 0
        for _ in range(rounds):
            rows += sum(len(self.tell(number)) for number in range(len(self.pools)))
            for number in range(len(self.pools)):
                self.deliver(number, now_s)
        return rows
