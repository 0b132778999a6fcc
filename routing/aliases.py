"""Aliases: route names that stand for weighted arms, each a version of a model.

Decides which arm a request takes. Sticky aliases hash what they stick to, so that every gateway
decides alike and remembers nothing; when weights change, only as many callers move as the weights
say. Refuses to know whether an arm is ready: a request never falls over to another arm, least of
all to one of weight 0. Called by the pipeline and by the metadata routes.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class StickTo(Enum):
    """What sends the same caller to the same arm."""

    NOTHING = "nothing"
    TENANT = "tenant"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way a request may take. `version` None means the model's default version."""

    model: str
    version: int | None
    weight: float


@dataclass(frozen=True, slots=True)
class Alias:
    """One route name. At least one of the `arms` has a weight above 0.

    `salt` keeps the choices of different aliases apart: without it the same callers would be in
    the small arm of every alias.
    """

    name: str
    arms: Sequence[Arm]
    stick_to: StickTo = StickTo.NOTHING
    header: str = ""
    salt: str = ""

    @property
    def heaviest(self) -> Arm:
        """The arm that answers for the alias where one has to: of equals, the first."""
        return max(self.arms, key=lambda arm: arm.weight)

    def choose(self, key: str | None, random: Callable[[], float]) -> Arm:
        """Return the arm of a request: by `key` if there is one, else at random."""
        point = random() if key is None else self._point(key)
        left = point * sum(arm.weight for arm in self.arms)
        for arm in self.arms:
            left -= arm.weight
            if left < 0:
                return arm
        # The sum of the weights rounds: the last arm that takes any.
        return next(arm for arm in reversed(self.arms) if arm.weight)

    def _point(self, key: str) -> float:
        text = f"{self.salt}\0{self.name}\0{key}".encode(errors="surrogateescape")
        digest = hashlib.blake2b(text, digest_size=7).digest()
        return int.from_bytes(digest, "big") / 2**56


class Aliases:
    """All aliases, by name. `random` yields floats in [0, 1)."""

    def __init__(self, aliases: Mapping[str, Alias], random: Callable[[], float]) -> None:
        self.by_name = aliases
        self._random = random

    def resolve(
        self,
        name: str,
        version: int | None,
        *,
        tenant: str,
        header: Callable[[str], str | None],
    ) -> tuple[str, int | None]:
        """Return the model and version a request for `name` means.

        A request that names a version means the model of that name, whatever alias there is. A
        request without the header its alias sticks to takes an arm at random.
        """
        alias = self._alias(name, version)
        if alias is None:
            return name, version
        key = None
        if alias.stick_to is StickTo.TENANT:
            key = tenant
        elif alias.stick_to is StickTo.HEADER:
            key = header(alias.header)
        arm = alias.choose(key, self._random)
        return arm.model, arm.version

    def stand_in(self, name: str, version: int | None) -> tuple[str, int | None]:
        """Return the model and version that answer questions about `name`."""
        alias = self._alias(name, version)
        return (name, version) if alias is None else (alias.heaviest.model, alias.heaviest.version)

    def _alias(self, name: str, version: int | None) -> Alias | None:
        return self.by_name.get(name) if version is None else None
