"""What the breakers of one worker process tell those of the other workers of its host.

The workers' breakers are replicas. Each judges the requests of its own worker and opens by itself;
`Pool.news` gives what has changed since the last call, one row a breaker, and `Pool.learn_foreign`
merges rows of others. Whoever connects the workers calls `news` about every 20 ms, carries the rows
to all others (those of one worker in order), and calls `learn_foreign` there. A worker that
joins gets `Pool.standing_news` of all others first. Breakers with nothing held against them are not
told of, so a healthy fleet causes no rows.

Rows of different workers can be merged in any order:

- **Failures in a row** are moments, and so is the newest success. A failure counts if it is newer
  than every success known. Whoever has had a success since a failure it hears of says so.
- **The success rate** is judged over what all workers have counted; each row has its worker's own
  fading counts, which replace what it said before. They are told while failures are fresh.
- **The circuit** has a turn, which grows by one each time it opens or closes. The higher turn wins;
  of equal ones open wins over closed, and of two open ones the one that stays open longer. Whoever
  follows passes it on once, so that nothing is lost with a worker that dies, and whoever hears of
  an older turn answers with its own.
- **Half-open** all workers together send one probe at a time: see `routing.shared` for how one of
  them gets the place. Successes of probes add up over the workers of the same turn, and whoever
  knows of enough closes the circuit; the server then starts slowly everywhere.
- **Too many open**: workers that opened circuits of different servers at the same moment may
  together exceed what may be ejected. All of them then close the ones that opened last.

What is heard never opens a circuit, only a failure of one's own does. Hence after enough failures
in all, each worker has at most those requests fail that were under way, and one more.
"""

from typing import NamedTuple


class News(NamedTuple):
    """One breaker as its worker sees it. Only text, numbers and tuples: easy to serialise.

    `model` is empty for the circuit of the server itself. Times are monotonic seconds; never is
    minus infinity. `failures` are those of this worker since it last told, each as the moments it
    began and ended; `failed_s` and `succeeded_s` the newest failure and success it knows of.
    `good` of `total` requests succeeded as this worker counted, faded to `counted_s`. `recovered`
    are this worker's successful probes in this turn. `allowed` is how many servers may be ejected
    at once.
    """

    worker: int
    server: str
    model: str
    version: int
    turn: int
    is_open: bool
    opened_until_s: float
    openings: int
    allowed: int
    tripped_s: float
    failed_s: float
    succeeded_s: float
    failures: tuple[tuple[float, float], ...]
    good: float
    total: float
    counted_s: float
    recovered: int
