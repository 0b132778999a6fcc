"""`python -m tests.bench.routing_cost`: what routing one request costs, by the size of the fleet.

Resolve, pick, settle and release, as the pipeline does them, on one core, with nothing between two
requests. See SIMULATION.md for figures and what they mean. Recorded, never asserted.
"""

import random
import time
from collections.abc import Sequence

from routing.balancing.least_request import LeastRequest
from routing.fleet import FleetTable, ModelVersion
from routing.pool import Pool, PoolSettings
from routing.types import Blame, ModelSpec, Server, TensorSpec

SIZES = ((2, 4), (200, 4), (2, 200), (200, 200))
REQUESTS = 20_000
RUNS = 30
STEP_S = 1e-4


def fleet(servers: int, models: int) -> tuple[FleetTable, Pool, list[ModelVersion]]:
    """Build a fleet in which every server has every model."""
    every = [Server(f"server-{number}") for number in range(servers)]
    keys = [ModelVersion(f"model-{number}", 1) for number in range(models)]
    table = FleetTable(every, quorum=0.5, recently_ready_s=10.0)
    tensors = (TensorSpec("IN", "FP32", (-1,)),)
    for server in every:
        table.server_up(server.name, server_id=server.name, triton_version="2.58.0", now_s=0.0)
        table.observe_ready(server.name, keys, asked_s=0.0, now_s=0.0)
    for key in keys:
        spec = ModelSpec(key.model, key.version, tensors, tensors)
        table.learn_spec(every[0].name, spec, now_s=0.0)
    pool = Pool(
        every,
        random=random.Random(1).random,
        settings=PoolSettings(max_detached_calls=256),
        new_balancer=lambda _: LeastRequest(),
    )
    return table, pool, keys


def route(table: FleetTable, pool: Pool, models: Sequence[str], *, requests: int) -> float:
    """Route requests to the models in turn; return the seconds of processor time for one."""
    snapshot, now_s, count = table.snapshot, 1.0, len(models)
    begun_s = time.process_time()
    for number in range(requests):
        found = snapshot.resolve(models[number % count], None, now_s)
        lease = pool.pick(found, now_s=now_s)
        lease.settle(Blame.NOBODY, now_s)
        lease.release()
        now_s += STEP_S
    return (time.process_time() - begun_s) / requests


def costs_s(sizes: Sequence[tuple[int, int]]) -> list[float]:
    """Return the processor time of one request at each size, the best of some runs, in seconds.

    The sizes take turns, so that what else the machine does meanwhile falls on all of them.
    """
    fleets = []
    for servers, models in sizes:
        table, pool, keys = fleet(servers, models)
        names = [key.model for key in keys]
        route(table, pool, names, requests=len(names))  # a model's first request sorts its servers
        fleets.append((table, pool, names))
    runs = [[route(*each, requests=REQUESTS) for each in fleets] for _ in range(RUNS)]
    return [min(of_one) for of_one in zip(*runs, strict=True)]


def main() -> None:
    """Print a row for each size."""
    print("| servers | models | us a request | of 2 x 4 |\n|---|---|---|---|")
    found = costs_s(SIZES)
    for (servers, models), cost_s in zip(SIZES, found, strict=True):
        print(f"| {servers} | {models} | {cost_s * 1e6:.1f} | {cost_s / found[0]:.2f} |")


if __name__ == "__main__":
    main()
