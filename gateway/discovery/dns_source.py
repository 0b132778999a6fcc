"""Servers from names in the DNS, which are resolved again when their answers have expired.

That a name has no address is an answer; that nobody could say is a failure, and the addresses of
that name stay what they were. Called by the runner.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.resolver

from gateway.discovery.source import Answer, MakeServer, S_co, SourceFailed

_UNKNOWN_TTL_S = 0.0
Address = tuple[str, int | None]
"""A host, and its gRPC port if the record says it."""


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """What is asked, and how often; times in seconds. `record` is "a", "aaaa" or "srv".

    `nameservers` are addresses and ports; without any those of the system are asked.
    """

    names: Sequence[str]
    record: str
    min_interval_s: float
    max_interval_s: float
    timeout_s: float
    nameservers: Sequence[tuple[str, int]] = ()


class DnsSource(Generic[S_co]):
    """Resolves names; see `gateway.discovery.source.Source`."""

    def __init__(self, settings: DnsSettings, make: MakeServer[S_co]) -> None:
        self._settings = settings
        self._make = make
        self._known: dict[str, Sequence[Address]] = {}
        self.retry_s = (settings.min_interval_s, settings.max_interval_s)
        self.fix = "check the names with dig, and that the nameservers can be reached from here"

    async def answers(self) -> AsyncGenerator[Answer[S_co], None]:
        """Yield the servers at all names, and again each time the records have expired."""
        while True:
            ttl_s, problems = await self._refresh()
            if problems and not self._known:
                raise SourceFailed("; ".join(problems))
            found = dict.fromkeys(at for addresses in self._known.values() for at in addresses)
            yield Answer(
                [self._make(host, port) for host, port in found],
                problem="; ".join(problems) or None,
            )
            settings = self._settings
            await asyncio.sleep(min(max(ttl_s, settings.min_interval_s), settings.max_interval_s))

    async def _refresh(self) -> tuple[float, list[str]]:
        """Resolve every name; return for how long the answers hold, and what could not be asked."""
        try:
            resolver = _resolver(self._settings)
        except dns.exception.DNSException as error:
            raise SourceFailed(f"the system's nameservers cannot be found: {error}") from None
        lookup = Lookup(resolver, self._settings.timeout_s)
        names = self._settings.names
        found = await asyncio.gather(
            *(lookup.addresses(name, self._settings.record) for name in names),
            return_exceptions=True,
        )
        problems = []
        for name, addresses in zip(names, found, strict=True):
            if isinstance(addresses, dns.exception.DNSException | OSError):
                problems.append(f"'{name}' cannot be resolved: {_why(addresses)}")
            elif isinstance(addresses, BaseException):
                raise addresses
            else:
                self._known[name] = addresses
        return (_UNKNOWN_TTL_S if problems else lookup.ttl_s), problems


class Lookup:
    """One round of questions, and for how long all answers so far hold."""

    def __init__(self, resolver: dns.asyncresolver.Resolver, timeout_s: float) -> None:
        self._resolver = resolver
        self._timeout_s = timeout_s
        self.ttl_s = float("inf")

    async def addresses(self, name: str, record: str) -> list[Address]:
        """Return the addresses at a name, sorted. Raises DNSException when nobody can tell."""
        if record != "srv":
            return [(host, None) for host in await self._hosts(name, record)]
        found: list[Address] = []
        for at in await self._ask(name, "srv"):
            target = str(at.target)
            if target == ".":  # RFC 2782: the service is not available here
                continue
            hosts = await self._hosts(target, "a") or await self._hosts(target, "aaaa")
            found += [(host, int(at.port)) for host in hosts]
        return sorted(found)

    async def _hosts(self, name: str, record: str) -> list[str]:
        return sorted(str(at.address) for at in await self._ask(name, record))

    async def _ask(self, name: str, record: str) -> Sequence[Any]:
        try:
            answer = await self._resolver.resolve(
                name, record, raise_on_no_answer=False, lifetime=self._timeout_s, search=True
            )
        except dns.resolver.NXDOMAIN:
            found = None
        else:
            found = answer.rrset
        # That there is nothing is never believed for long.
        holds_s = float(answer.chaining_result.minimum_ttl) if found else 0.0
        self.ttl_s = min(self.ttl_s, holds_s)
        return list(found or ())


def _resolver(settings: DnsSettings) -> dns.asyncresolver.Resolver:
    if not settings.nameservers:
        return dns.asyncresolver.Resolver()
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [
        dns.nameserver.Do53Nameserver(host, port) for host, port in settings.nameservers
    ]
    return resolver


def _why(error: Exception) -> str:
    if isinstance(error, dns.exception.Timeout):
        return "no nameserver answered in time"
    return str(error) or type(error).__name__
