"""Priority classes: how important a request is, compared with others.

Names and order are the operator's; the three that exist without a word in the configuration are
those of the SRE book's criticalities, without the fourth.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """One class; `rank` 0 is the most important.

    `ceiling` is the share of a model's places and of its queue, above 0 and at most 1, at which
    requests of the class are held back so that more important ones still find room.
    `queue_timeout_us` is how long they may wait in a queue of their server, in microseconds; 0 is
    as long as the model lets them.
    """

    name: str
    rank: int
    ceiling: float = 1.0
    queue_timeout_us: int = 0


CRITICAL = PriorityClass("critical", 0, 1.0)
STANDARD = PriorityClass("standard", 1, 0.9)
SHEDDABLE = PriorityClass("sheddable", 2, 0.7)
CLASSES = (CRITICAL, STANDARD, SHEDDABLE)
