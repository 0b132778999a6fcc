"""What a request passes between its body and its server: class, limits, room, sequence."""

from dataclasses import dataclass

from config.models import Config
from gateway.admission import Admission
from gateway.limits.gate import RateLimits
from gateway.ranking import Ranking
from gateway.sequences import Sequences
from gateway.wiring.admission import admission_of
from gateway.wiring.fleet import FleetParts
from gateway.wiring.limits import rules_of
from gateway.wiring.priorities import priorities_of
from gateway.wiring.sharing import Shared, sequences_of
from routing.limits import RuleBook


@dataclass(frozen=True, slots=True)
class Gates:
    """The parts; `admission` is None where nobody waits."""

    ranking: Ranking
    rules: RuleBook
    limits: RateLimits
    admission: Admission | None
    sequences: Sequences


def gates_of(config: Config, fleet: FleetParts, shared: Shared, workers: int) -> Gates:
    """Build them for one of so many workers."""
    pool, book = fleet.ledger.pool, fleet.ledger.book
    rules = rules_of(config)
    return Gates(
        ranking=Ranking(priorities_of(config), book.queueing),
        rules=rules,
        limits=RateLimits(rules, shared.limiter, shared.switches),
        admission=admission_of(config, pool, shared.switches, workers),
        sequences=sequences_of(config, fleet.watcher, pool, book, shared),
    )
