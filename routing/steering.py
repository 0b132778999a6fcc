"""What operators have taken out by hand: cordoned servers, blocked models.

Immutable values; `Steering` is replaced as a whole, kept on disk by the gateway and consulted by
the pool whenever it lists who may be chosen.
"""

from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """A model (or one version of it) that is not to be served, on one server or on all."""

    model: str
    version: int | None = None
    server: str | None = None

    def covers(self, model: str, version: int, server: str) -> bool:
        """Whether this version on this server is meant."""
        return (
            self.model == model
            and self.version in (None, version)
            and self.server in (None, server)
        )


@dataclass(frozen=True, slots=True)
class Steering:
    """Everything taken out by hand. A cordoned server keeps what it has and gets nothing new."""

    cordoned: frozenset[str] = field(default_factory=frozenset)
    blocks: frozenset[Block] = field(default_factory=frozenset)

    def cordon(self, server: str) -> Self:
        """Return the steering with `server` cordoned."""
        return replace(self, cordoned=self.cordoned | {server})

    def uncordon(self, server: str) -> Self:
        """Return the steering with `server` in use again."""
        return replace(self, cordoned=self.cordoned - {server})

    def block(self, block: Block) -> Self:
        """Return the steering with one more block."""
        return replace(self, blocks=self.blocks | {block})

    def unblock(self, block: Block) -> Self:
        """Return the steering without that block."""
        return replace(self, blocks=self.blocks - {block})

    def reason(self, model: str, version: int, server: str) -> str | None:
        """Return why the version must not be served there, or None."""
        if server in self.cordoned:
            return "cordoned by an operator"
        if self.blocked(model, version, server):
            return "blocked by an operator"
        return None

    def blocked(self, model: str, version: int, server: str) -> bool:
        """Whether not even what runs there already may go on."""
        return any(block.covers(model, version, server) for block in self.blocks)
