"""What operators can switch off for a while in an emergency, and what of it is off now.

`Switches` is what requests ask; `Switch` is one command, as it is kept and passed on. Who gives
commands, and how other processes and gateways learn of them, is in `gateway.switchboard`. A new
feature is one more `Feature`, asked for where it would refuse.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

MAX_S = 86_400.0
"""The longest time for which anything can be off: a day."""
MAX_REASON_LENGTH = 200
_YEAR_9000_S = 221_845_392_000
_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)


class Feature(StrEnum):
    """What can be switched off. The values are typed by operators, and labels of metrics."""

    LIMITS = "limits"  # every rule of `limits` as with `mode: observe`
    ADMISSION = "admission"  # the gateway's own queues refuse nothing
    AUTH = "auth"  # as `auth.mode: observe`, but for what needs a scope


class Switches:
    """What is off in this process. `until_s` has the end of each, in seconds of `clock`.

    The clock is one that all processes of a machine have in common. It is looked at only while
    something is off: whoever is to say so is of no account once the time is over.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.until_s: Mapping[str, float] = {}
        self._clock = clock

    def disabled(self, feature: str) -> bool:
        """Whether a feature is switched off now."""
        until_s = self.until_s
        return bool(until_s) and until_s.get(feature, -math.inf) > self._clock()


@dataclass(frozen=True, slots=True)
class Switch:
    """The last command for one feature: it is `off`, or on again before its time was over.

    Of two commands the one with the later `since_s` counts, and it counts until `until_s`: both in
    seconds of the epoch. `by` and `reason` are for people.
    """

    feature: Feature
    off: bool
    by: str
    reason: str
    since_s: float
    until_s: float

    def entry(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "feature": self.feature.value}

    @classmethod
    def of_entry(cls, entry: object) -> Self:
        """Read what `entry` returned; what else is there is a newer gateway's. Raises ValueError.

        The message is the name of the field and what is wrong with it.
        """
        if not isinstance(entry, dict):
            raise ValueError("not a JSON object")
        for name, kind in _FIELDS.items():
            if name not in entry:
                raise ValueError(f"{name}: missing")
            if type(entry[name]) not in kind:
                raise ValueError(f"{name}: not a {' or '.join(each.__name__ for each in kind)}")
        if entry["feature"] not in frozenset(Feature):
            raise ValueError("feature: nothing that can be switched off")
        for name in ("since_s", "until_s"):
            if not 0 <= entry[name] < _YEAR_9000_S:
                raise ValueError(f"{name}: not seconds of the epoch")
        fields = {name: entry[name] for name in _FIELDS}
        return cls(**{**fields, "feature": Feature(entry["feature"])})


_FIELDS: Mapping[str, tuple[type, ...]] = {
    "feature": (str,),
    "off": (bool,),
    "by": (str,),
    "reason": (str,),
    "since_s": (float, int),
    "until_s": (float, int),
}


def parse_duration(text: str) -> float:
    """Return the seconds of a text as in 90s, 30m, 1h30m. Raises ValueError.

    It must be a time for which something may be off.
    """
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text[:20]!r} is no time - write it as in 90s, 30m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    duration_s = float(hours * 3600 + minutes * 60 + seconds)
    if not 0 < duration_s <= MAX_S:
        raise ValueError(f"{text[:20]!r} - it must be more than nothing and at most 24h")
    return duration_s


def check_reason(text: str) -> str:
    """Return a reason an operator gave. Raises ValueError for what is no line of text."""
    if len(text) > MAX_REASON_LENGTH or not (text.isprintable() or not text):
        raise ValueError(f"the reason must be one line of at most {MAX_REASON_LENGTH} characters")
    return text
