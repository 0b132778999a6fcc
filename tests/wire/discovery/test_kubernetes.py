"""The endpoints of a service: listed, watched, and found again whatever becomes of the watch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.discovery.kubernetes_source import KubernetesSettings, KubernetesSource
from gateway.discovery.source import Answer, SourceFailed
from tests.fakes.kubernetes import FakeKubernetes, endpoint, endpoint_slice
from tests.serving import until


@dataclass(frozen=True)
class Server:
    name: str
    grpc: str
    zone: str | None


def make(host: str, port: int | None = None, zone: str | None = None) -> Server:
    return Server(f"k-{host}", f"{host}:{port}", zone)


class Following:
    """A source, and its answers one after the other."""

    def __init__(self, cluster: FakeKubernetes, settings: KubernetesSettings) -> None:
        self.cluster = cluster
        self._answers = KubernetesSource(settings, make).answers()

    async def answer(self) -> Answer[Server]:
        async with asyncio.timeout(10):
            return await anext(self._answers)

    async def hosts(self) -> list[str]:
        return sorted(server.grpc for server in (await self.answer()).servers)

    async def next(self, change: Callable[[], object]) -> list[str]:
        """Return the next answer; the change is made when the watch is on."""
        waiting = asyncio.ensure_future(self.hosts())
        await until(lambda: self.cluster.watched > 0)
        change()
        return await waiting

    async def close(self) -> None:
        await self._answers.aclose()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as fake:
        yield fake


@pytest.fixture
def settings(cluster: FakeKubernetes, tmp_path: Path) -> KubernetesSettings:
    return KubernetesSettings(
        namespace="ml",
        service="triton",
        port="grpc",
        kubeconfig=cluster.kubeconfig(tmp_path),
        pause_s=0.01,
    )


@pytest.fixture
async def source(cluster: FakeKubernetes, settings: KubernetesSettings) -> AsyncIterator[Following]:
    following = Following(cluster, settings)
    yield following
    await following.close()


ONE = endpoint_slice("s1", endpoint("10.0.0.1"))
BOTH = endpoint_slice("s1", endpoint("10.0.0.1"), endpoint("10.0.0.2"))


async def test_the_endpoints_of_all_slices_of_the_service_are_servers(cluster, source) -> None:
    cluster.put(ONE)
    cluster.put(endpoint_slice("s2", endpoint("10.0.0.2"), ports={"http": 8000, "grpc": 9001}))
    cluster.put(endpoint_slice("other", endpoint("10.0.0.9"), service="else"))
    answer = await source.answer()
    assert list(answer.servers) == [
        Server("k-10.0.0.1", "10.0.0.1:8001", "z1"),
        Server("k-10.0.0.2", "10.0.0.2:9001", "z1"),
    ]
    assert cluster.tokens == ["Bearer let-me-in"]


async def test_no_slice_and_an_empty_slice_are_empty_answers(cluster, source) -> None:
    assert await source.hosts() == []
    empty = endpoint_slice("s1")
    assert await source.next(lambda: cluster.put(empty)) == []
    assert await source.next(lambda: cluster.put(ONE)) == ["10.0.0.1:8001"]
    assert await source.next(lambda: cluster.put(empty)) == []


async def test_events_change_the_answer_without_another_list(cluster, source) -> None:
    cluster.put(ONE)
    assert await source.hosts() == ["10.0.0.1:8001"]
    assert await source.next(lambda: cluster.put(BOTH)) == ["10.0.0.1:8001", "10.0.0.2:8001"]
    assert await source.next(lambda: cluster.delete("s1")) == []
    assert cluster.lists == 1


async def test_an_endpoint_that_terminates_leaves_and_one_that_is_not_ready_stays(
    cluster, source
) -> None:
    cluster.put(
        endpoint_slice(
            "s1",
            endpoint("10.0.0.1", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.2", ready=False, serving=False, terminating=False),
        )
    )
    answer = await source.answer()
    assert {server.name for server in answer.servers} == {"k-10.0.0.1", "k-10.0.0.2"}
    assert answer.leaving == {"k-10.0.0.1"}


async def test_an_endpoint_that_moves_between_slices_does_not_leave(cluster, source) -> None:
    cluster.put(endpoint_slice("old", endpoint("10.0.0.1", terminating=True)))
    cluster.put(endpoint_slice("new", endpoint("10.0.0.1")))
    cluster.put(endpoint_slice("third", endpoint("10.0.0.1", terminating=True)))
    answer = await source.answer()
    assert (len(answer.servers), answer.leaving) == (1, frozenset())


async def test_of_two_address_families_one_counts(cluster, source) -> None:
    six = endpoint_slice("six", endpoint("fd00::1"), family="IPv6")
    cluster.put(six)
    cluster.put(ONE)
    assert await source.hosts() == ["10.0.0.1:8001"]
    assert await source.next(lambda: cluster.delete("s1")) == ["fd00::1:8001"]


async def test_a_bookmark_is_where_a_watch_goes_on(cluster, source) -> None:
    cluster.put(ONE)
    await source.hosts()
    waiting = asyncio.ensure_future(source.hosts())
    await until(lambda: cluster.watched == 1)
    cluster.bookmark()
    version = cluster.version
    cluster.cut()
    await until(lambda: len(cluster.requests) == 3 and cluster.watched == 1)
    assert cluster.requests[2]["resourceVersion"] == str(version)
    assert cluster.requests[2]["allowWatchBookmarks"].lower() == "true"
    cluster.put(BOTH)
    assert await waiting == ["10.0.0.1:8001", "10.0.0.2:8001"]
    assert cluster.lists == 1


async def test_half_an_event_at_the_end_of_a_connection_is_left_out(cluster, source) -> None:
    cluster.put(ONE)
    await source.hosts()

    def half_then_whole() -> None:
        cluster.send(b'{"type": "DELETED", "object": {"metadata": {"na')
        cluster.cut()

    waiting = asyncio.ensure_future(source.hosts())
    await until(lambda: cluster.watched == 1)
    half_then_whole()
    await until(lambda: len(cluster.requests) == 3 and cluster.watched == 1)
    cluster.put(BOTH)
    assert await waiting == ["10.0.0.1:8001", "10.0.0.2:8001"]


async def test_a_very_long_event_is_read(cluster, source) -> None:
    await source.hosts()
    many = [endpoint(f"10.0.{i // 250}.{i % 250}", ready=True) for i in range(4000)]
    assert len(await source.next(lambda: cluster.put(endpoint_slice("s1", *many)))) == 4000


@pytest.mark.parametrize("how", ["expired", "expired_in_stream"])
async def test_a_place_that_is_too_old_leads_to_a_new_list(cluster, source, how) -> None:
    cluster.put(ONE)
    await source.hosts()
    setattr(cluster, how, 1)
    cluster.slices["s1"] = cluster._versioned(BOTH)
    assert await source.hosts() == ["10.0.0.1:8001", "10.0.0.2:8001"]
    assert cluster.lists == 2
    assert await source.next(lambda: cluster.put(ONE)) == ["10.0.0.1:8001"]


async def test_a_refusal_is_told_in_the_clusters_words(cluster, source) -> None:
    cluster.refusal = (403, "endpointslices is forbidden: User u cannot list")
    with pytest.raises(SourceFailed, match="answers 403: endpointslices is forbidden"):
        await source.answer()


async def test_a_watch_that_is_refused_or_fails_is_a_failure(cluster, source, settings) -> None:
    await source.hosts()
    cluster.refusal = (500, "etcd is away")
    with pytest.raises(SourceFailed, match="answers 500: etcd is away"):
        await source.hosts()
    cluster.refusal = None
    other = Following(cluster, settings)
    await other.hosts()
    status = {"type": "ERROR", "object": {"code": 500, "message": "broken"}}
    with pytest.raises(SourceFailed, match="the watch has failed: broken"):
        await other.next(lambda: cluster.send(status))


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b"no json\n", b'{"type":"ADDED","object":1}\n'])
async def test_an_event_that_is_not_understood_is_a_failure(cluster, source, line) -> None:
    await source.hosts()
    with pytest.raises(SourceFailed, match="not understood"):
        await source.next(lambda: cluster.send(line))


async def test_a_port_that_the_service_does_not_have_is_told(cluster, settings) -> None:
    cluster.put(ONE)
    source = Following(cluster, replace(settings, port="triton"))
    with pytest.raises(SourceFailed, match="has no port 'triton'; it has grpc"):
        await source.answer()
    default = Following(cluster, replace(settings, port=None))
    assert await default.hosts() == ["10.0.0.1:None"]
    await default.close()


async def test_a_cluster_out_of_reach_is_a_failure(settings, cluster) -> None:
    await cluster.__aexit__()
    with pytest.raises(SourceFailed, match="cannot be reached"):
        await Following(cluster, settings).answer()
    await cluster.__aenter__()


async def test_without_a_way_to_the_cluster_it_is_said(cluster, settings, tmp_path) -> None:
    with pytest.raises(SourceFailed, match="the way to the cluster is not known"):
        await Following(cluster, replace(settings, kubeconfig=None)).answer()
    (tmp_path / "empty").write_text("")
    with pytest.raises(SourceFailed, match="the way to the cluster is not known"):
        await Following(cluster, replace(settings, kubeconfig=tmp_path / "empty")).answer()
