"""The public keys of an issuer of tokens: a JSON Web Key Set (RFC 7517), fetched and kept.

One fetch at a time, and none sooner than `retry_s` after the last, whatever tokens strangers show.
Keys that cannot be fetched again are used on for `max_stale_s`. Requests wait for a fetch only as
long as the issuer answers: when it does not, later ones are judged at once by what is known. Called
by `tokens`.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gateway.identity.refused import Reason, Refused
from gateway.ports import Clock, LogEvent
from gateway.tasks import spawn

_MAX_SET_BYTES = 512 * 1024
_MOST_KEYS = 100
_PUBLIC_KINDS = ("RSA", "EC", "OKP")


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """One key. `algorithm` is the only one it is for, None where the issuer does not say."""

    algorithm: str | None
    public: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class FetchRules:
    """Where the keys are, and when they are fetched."""

    url: str
    refresh_s: float
    retry_s: float
    max_stale_s: float
    timeout_s: float


class IssuerKeys:
    """The keys of one issuer, by key id. `told` logs that they could not be fetched."""

    def __init__(self, rules: FetchRules, *, clock: Clock, told: LogEvent) -> None:
        self.rules = rules
        self.generation = 0
        """Another number whenever the keys are others."""
        self._clock = clock
        self._told = told
        self._keys: dict[str, IssuerKey] = {}
        self._published: object = None
        self._fetched_s = self._tried_s = float("-inf")
        self._failing = False
        self._fetching: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """See that there are keys; older ones are fetched again meanwhile. Raises Refused."""
        age_s = self._clock() - self._fetched_s
        if age_s < self.rules.refresh_s:
            return
        if age_s < self.rules.refresh_s + self.rules.max_stale_s:
            self._begin()
            return
        await self._fetch()
        if self._clock() - self._fetched_s >= self.rules.refresh_s + self.rules.max_stale_s:
            raise Refused(Reason.UNVERIFIABLE)

    async def find(self, key_id: str | None) -> IssuerKey | None:
        """Return a key; a token without a key id has the only one there is."""
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        if key_id not in self._keys:
            await self._fetch()
        return self._keys.get(key_id)

    async def _fetch(self) -> None:
        """Fetch the keys if it is time to, and wait for them unless that failed the last time."""
        self._begin()
        if self._fetching is not None and not self._failing:
            await asyncio.shield(self._fetching)

    def _begin(self) -> None:
        now_s = self._clock()
        if self._fetching is None and now_s - self._tried_s >= self.rules.retry_s:
            self._tried_s = now_s
            self._fetching = spawn(self._fetch_now(), name="keys of the issuer of tokens")

    async def _fetch_now(self) -> None:
        try:
            published = await _get(self.rules.url, self.rules.timeout_s)
            keys = dict(_usable(published))
            if not keys:
                raise ValueError("no key there can be used")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._failing = True
            self._told(
                "token keys not fetched",
                url=self.rules.url,
                reason=str(error) or type(error).__name__,
                known=len(self._keys),
            )
        else:
            self._failing = False
            self._fetched_s = self._clock()
            if published != self._published:
                self._keys, self._published = keys, published
                self.generation += 1
        finally:
            self._fetching = None


async def _get(url: str, timeout_s: float) -> Any:
    """Return the JSON document at `url`. Redirections are not followed: they could leave https."""
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        text = await _bounded(answer.content)
    return json.loads(text)


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    text = bytearray()
    while piece := await content.readany():
        text += piece
        if len(text) > _MAX_SET_BYTES:
            raise ValueError(f"more than {_MAX_SET_BYTES} bytes")
    return bytes(text)


def _usable(published: Any) -> Iterator[tuple[str, IssuerKey]]:
    """Yield the public keys for signatures of a key set, by key id. Raises ValueError."""
    import jwt  # noqa: PLC0415 - 8 MB of each process, and few accept tokens

    listed = published.get("keys") if isinstance(published, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JSON Web Key Set")
    for written in listed[:_MOST_KEYS]:
        if not isinstance(written, dict) or written.get("kty") not in _PUBLIC_KINDS:
            continue
        if written.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(written)
        except jwt.PyJWTError:
            continue
        yield str(written.get("kid", "")), IssuerKey(written.get("alg"), key.key)
