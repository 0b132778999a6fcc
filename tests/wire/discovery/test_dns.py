"""Names are resolved over real packets, and answers of every kind become servers or failures."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import pytest

from gateway.discovery.dns_source import DnsSettings, DnsSource
from gateway.discovery.source import Answer, SourceFailed
from tests.fakes.dns import FakeDns

NAME = "triton.example"


@dataclass(frozen=True)
class Server:
    name: str
    grpc: str


def make(host: str, port: int | None = None, zone: str | None = None) -> Server:
    return Server(host, f"{host}:{port}")


@pytest.fixture
async def nameserver() -> AsyncIterator[FakeDns]:
    async with FakeDns() as fake:
        yield fake


def settings(nameserver: FakeDns, **values: object) -> DnsSettings:
    host, port = nameserver.address.split(":")
    base = DnsSettings(
        names=[NAME],
        record="a",
        min_interval_s=0.01,
        max_interval_s=60.0,
        timeout_s=2.0,
        nameservers=[(host, int(port))],
    )
    return replace(base, **values)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def asking(nameserver: FakeDns, **values: object) -> AsyncIterator["Asking"]:
    source = DnsSource(settings(nameserver, **values), make)
    async with contextlib.aclosing(source.answers()) as answers:
        yield Asking(answers)


class Asking:
    def __init__(self, answers: object) -> None:
        self._answers = answers

    async def answer(self) -> Answer[Server]:
        async with asyncio.timeout(10):
            return await anext(self._answers)  # type: ignore[call-overload, no-any-return]

    async def hosts(self) -> list[str]:
        return [server.grpc for server in (await self.answer()).servers]


async def once(nameserver: FakeDns, **values: object) -> Sequence[str]:
    async with asking(nameserver, **values) as source:
        return await source.hosts()


async def test_all_addresses_of_all_names_are_servers_each_once(nameserver: FakeDns) -> None:
    nameserver.has("one", "A", "10.0.0.2", "10.0.0.1")
    nameserver.has("two", "A", "10.0.0.2", "10.0.0.3")
    found = await once(nameserver, names=["one", "two"])
    assert found == ["10.0.0.1:None", "10.0.0.2:None", "10.0.0.3:None"]


async def test_ipv6_addresses(nameserver: FakeDns) -> None:
    nameserver.has(NAME, "AAAA", "fd00::1")
    assert await once(nameserver, record="aaaa") == ["fd00::1:None"]


async def test_service_records_name_hosts_and_ports(nameserver: FakeDns) -> None:
    nameserver.has(NAME, "SRV", "0 0 8001 one.", "0 0 9001 two.", "0 0 1 gone.", "0 0 0 .")
    nameserver.has("one", "A", "10.0.0.1")
    nameserver.has("two", "AAAA", "fd00::2")
    assert await once(nameserver, record="srv") == ["10.0.0.1:8001", "fd00::2:9001"]


async def test_a_name_without_addresses_and_one_that_does_not_exist_are_empty_answers(
    nameserver: FakeDns,
) -> None:
    nameserver.has(NAME, "A")
    assert await once(nameserver) == []
    assert await once(nameserver, names=["unheard.of"]) == []


async def test_names_are_resolved_again_when_their_answer_has_expired(nameserver: FakeDns) -> None:
    nameserver.has(NAME, "A", "10.0.0.1")
    nameserver.ttl_s = 0
    async with asking(nameserver) as source:
        assert await source.hosts() == ["10.0.0.1:None"]
        nameserver.has(NAME, "A", "10.0.0.2")
        assert await source.hosts() == ["10.0.0.2:None"]


@pytest.mark.parametrize(
    ("ttl_s", "bounds_s", "waits"),
    [(0, (0.01, 60.0), False), (3600, (0.01, 0.02), False), (3600, (0.01, 60.0), True),
     (0, (30.0, 60.0), True)],
)  # fmt: skip
async def test_how_long_an_answer_holds_has_a_floor_and_a_ceiling(
    nameserver: FakeDns, ttl_s: int, bounds_s: tuple[float, float], waits: bool
) -> None:
    nameserver.has(NAME, "A", "10.0.0.1")
    nameserver.ttl_s = ttl_s
    least_s, most_s = bounds_s
    async with asking(nameserver, min_interval_s=least_s, max_interval_s=most_s) as source:
        await source.hosts()
        if waits:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await source.hosts()
        else:
            await source.hosts()
            assert nameserver.asked[NAME, "A"] == 2


async def test_a_nameserver_that_fails_is_no_empty_answer(nameserver: FakeDns) -> None:
    nameserver.broken = {NAME}
    with pytest.raises(SourceFailed, match="SERVFAIL"):
        await once(nameserver)


async def test_a_silent_nameserver_fails_in_time(nameserver: FakeDns) -> None:
    nameserver.silent = True
    with pytest.raises(SourceFailed, match="no nameserver answered in time"):
        await once(nameserver, timeout_s=0.1)


async def test_a_name_that_cannot_be_resolved_for_now_keeps_its_addresses(
    nameserver: FakeDns,
) -> None:
    nameserver.has("one", "A", "10.0.0.1")
    nameserver.has("two", "A", "10.0.0.2")
    nameserver.ttl_s = 0
    async with asking(nameserver, names=["one", "two"]) as source:
        await source.hosts()
        nameserver.broken = {"one"}
        nameserver.has("two", "A", "10.0.0.3")
        answer = await source.answer()
        assert [server.name for server in answer.servers] == ["10.0.0.1", "10.0.0.3"]
        assert "'one' cannot be resolved" in str(answer.problem)
        nameserver.broken = set()
        assert (await source.answer()).problem is None


async def test_the_systems_nameservers_are_asked_unless_others_are_written(
    nameserver: FakeDns, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dns.asyncresolver

    made = []

    class Resolver:
        def __init__(self, **options: object) -> None:
            made.append(options)
            raise dns.resolver.NoResolverConfiguration

    monkeypatch.setattr(dns.asyncresolver, "Resolver", Resolver)
    with pytest.raises(SourceFailed, match="the system's nameservers cannot be found"):
        await once(nameserver, nameservers=())
    assert made == [{}]
