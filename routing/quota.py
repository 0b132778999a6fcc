"""What is used up of quotas: rates by GCRA, places of concurrent requests by leases.

Decides whether a request fits: all its charges and places or none of them. A rate is kept as one
number, the theoretical arrival time (TAT): the moment when everything charged so far is worked
off. Times are whole microseconds, passed in. `gateway/stores/*.lua` say the same for Redis; the
tests hold both to one suite.
"""

from dataclasses import dataclass

_SWEEP_FROM = 1000


@dataclass(frozen=True, slots=True)
class Charge:
    """What is asked of one rate. `extra_us` more is welcome: as many whole costs as fit."""

    key: str
    cost_us: int
    burst_us: int
    extra_us: int = 0
    enforce: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """One of `most` places at `key`, wanted for `holder`."""

    key: str
    most: int
    holder: str
    enforce: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for. Places are given for `ttl_ms`, unless they are renewed."""

    charges: tuple[Charge, ...] = ()
    places: tuple[Place, ...] = ()
    ttl_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Counted:
    """The answer for one charge or place.

    `used` is what is used up now: microseconds of the burst, or places. `extra_us` of what was
    welcome has been charged.
    """

    over: bool
    used: int
    extra_us: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an Ask. When it is refused nothing was charged, else all that is not over."""

    refused: bool
    charges: tuple[Counted, ...]
    places: tuple[Counted, ...]


class Quotas:
    """Quotas in memory. Those that are not in use take none: they are dropped now and then."""

    def __init__(self) -> None:
        self._tats_us: dict[str, int] = {}
        self._places: dict[str, dict[str, int]] = {}
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._tats_us) + len(self._places)

    def decide(self, ask: Ask, now_us: int) -> Answer:
        """Charge everything, or nothing if something that is enforced does not fit."""
        charges = [self._look_at_rate(charge, now_us) for charge in ask.charges]
        places = [self._look_at_places(place, now_us) for place in ask.places]
        refused = any(
            counted.over and charge.enforce
            for charge, counted in zip(ask.charges, charges, strict=True)
        ) or any(
            counted.over and place.enforce
            for place, counted in zip(ask.places, places, strict=True)
        )
        if not refused:
            for index, charge in enumerate(ask.charges):
                charges[index] = self._charge(charge, charges[index], now_us)
            until_us = now_us + ask.ttl_ms * 1000
            for index, place in enumerate(ask.places):
                places[index] = self._seat(place, places[index], until_us)
        self._sweep(now_us)
        return Answer(refused, tuple(charges), tuple(places))

    def give_back(self, key: str, amount_us: int, now_us: int) -> None:
        """Take back what was charged, as far as it is not worked off."""
        tat_us = self._tats_us.get(key)
        if tat_us is not None:
            self._tats_us[key] = max(now_us, tat_us - amount_us)

    def hold(self, key: str, holder: str, until_us: int, now_us: int) -> int:
        """Keep a place, or take it whatever the limit; return how many are taken."""
        held = self._held(key, now_us)
        held[holder] = until_us
        self._places[key] = held
        return len(held)

    def free(self, key: str, holder: str) -> None:
        """Give a place back."""
        self._places.get(key, {}).pop(holder, None)

    def forget(self, key: str) -> None:
        """Make a quota as if it had never been used."""
        self._tats_us.pop(key, None)
        self._places.pop(key, None)

    def _look_at_rate(self, charge: Charge, now_us: int) -> Counted:
        # More than the whole burst cannot be used: a clock was set back, or a limit lowered.
        used_us = self._tats_us.get(charge.key, now_us) - now_us
        used_us = min(max(used_us, 0), charge.burst_us)
        return Counted(charge.cost_us > charge.burst_us - used_us, used_us)

    def _look_at_places(self, place: Place, now_us: int) -> Counted:
        taken = len(self._held(place.key, now_us))
        return Counted(taken >= place.most, taken)

    def _charge(self, charge: Charge, found: Counted, now_us: int) -> Counted:
        if found.over:
            return found
        used_us = found.used + charge.cost_us
        extra_us = min(charge.extra_us, charge.burst_us - used_us)
        extra_us -= extra_us % max(charge.cost_us, 1)  # less would pay for no request
        if charge.cost_us or extra_us:
            self._tats_us[charge.key] = now_us + used_us + extra_us
        return Counted(False, used_us + extra_us, extra_us)

    def _held(self, key: str, now_us: int) -> dict[str, int]:
        held = self._places.get(key, {})
        for holder in [holder for holder, until_us in held.items() if until_us <= now_us]:
            del held[holder]
        return held

    def _seat(self, place: Place, found: Counted, until_us: int) -> Counted:
        if found.over:
            return found
        self._places.setdefault(place.key, {})[place.holder] = until_us
        return Counted(False, found.used + 1)

    def _sweep(self, now_us: int) -> None:
        if len(self) < self._sweep_at:
            return
        self._tats_us = {key: tat for key, tat in self._tats_us.items() if tat > now_us}
        self._places = {key: held for key in self._places if (held := self._held(key, now_us))}
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self))
