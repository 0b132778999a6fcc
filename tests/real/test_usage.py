"""Two tenants and a stranger on one model: what each has used, through one process and several."""

import asyncio
import contextlib
import json
import random
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as triton
import yaml

from gateway.cli.local_triton import LocalTriton
from tests import clients
from tests.clients import Connection, Reply, ask, infer
from tests.fakes.proxy import TcpProxy
from tests.gateways import configuration
from tests.operators import operate
from tests.redis_server import RedisServer
from tests.tenants import KEYS, bearer, hashed
from tests.workers import Workers, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "sleep_rows"
MS = 20
"""What each row takes."""
PATIENT_S = 30.0
TENANTS = {
    "auth": {"mode": "enforce", "allow_anonymous": True},
    "tenants": {name: {"keys": [hashed(name)]} for name in ("a", "b")},
}


class Accounts(Workers):
    """A gateway whose accounts are read. Its config tells how many processes it is."""

    @property
    def folder(self) -> Path:
        return self.config_path.parent

    async def usage(self, query: str = "") -> Any:
        return await self.get(f"/usage{query}")

    async def used(self) -> dict[str, dict[str, Any]]:
        """Return what each tenant has used of the model."""
        tenants = (await self.usage())["tenants"]
        return {
            row["tenant"]: used
            for row in tenants
            for used in row["models"]
            if used["model"] == MODEL
        }

    async def send(self, tenant: str | None, rows: int) -> tuple[int, Reply]:
        """Send a request; return the length of its body, and the answer."""
        body = rows_of(rows)
        headers = bearer(KEYS[tenant]) if tenant else {}
        reply = await ask(self.api_port, infer(MODEL, body, **headers))
        return len(body), reply

    async def send_all(self, wanted: Iterable[tuple[str | None, int]]) -> "Sent":
        wanted = list(wanted)
        done = await asyncio.gather(*(self.send(tenant, rows) for tenant, rows in wanted))
        sent = Sent()
        for (tenant, rows), (size, reply) in zip(wanted, done, strict=True):
            assert reply.status == 200, reply
            sent.add(tenant or "anonymous", rows, size, len(reply.body))
        return sent

    async def compute_s(self) -> dict[str, float]:
        return {tenant: used["compute_seconds"] for tenant, used in (await self.used()).items()}

    async def server_compute_s(self) -> float:
        """Return how long the server says it has computed on the model."""
        reply = await ask(self.api_port, clients.request("GET", f"/v2/models/{MODEL}/stats"))
        batches = reply.json["model_stats"][0]["batch_stats"]
        return sum(int(batch["compute_infer"]["ns"]) for batch in batches) / 1e9


class Sent(dict[str, dict[str, int]]):
    """What tenants have sent and got."""

    def add(self, tenant: str, rows: int, input_bytes: int, output_bytes: int) -> None:
        used = self.setdefault(
            tenant, dict.fromkeys(("requests", "rows", "input_bytes", "output_bytes", "errors"), 0)
        )
        used["requests"] += 1
        used["rows"] += rows
        used["input_bytes"] += input_bytes
        used["output_bytes"] += output_bytes


def rows_of(rows: int, ms: int = MS) -> bytes:
    tensor = {"name": "MS", "datatype": "INT32", "shape": [rows, 1], "data": [ms] * rows}
    return json.dumps({"inputs": [tensor]}).encode()


def without_time(used: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    left_out = ("model", "compute_seconds")
    return {
        tenant: {unit: amount for unit, amount in amounts.items() if unit not in left_out}
        for tenant, amounts in used.items()
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[1, 2])
async def gateway(
    request: pytest.FixtureRequest,
    triton_a: LocalTriton,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Accounts]:
    folder = tmp_path_factory.mktemp("usage")
    config = configuration(
        {"a": triton_a.grpc_address}, usage={"state_file": str(folder / "usage.json")}, **TENANTS
    )
    running = Accounts({**config, "workers": request.param}, folder)
    await running.begin()
    try:
        yield running
    finally:
        await running.end()


async def test_requests_rows_and_bytes_are_exact_and_time_is_shared_by_rows(
    gateway: Accounts, triton_a: LocalTriton
) -> None:
    spent_s = -await gateway.server_compute_s()
    sent = await gateway.send_all([("a", 2), ("b", 1), ("a", 4), ("b", 2)] * 3)
    spent_s += await gateway.server_compute_s()
    assert spent_s >= 27 * MS / 1000
    assert (sent["a"]["rows"], sent["b"]["rows"]) == (18, 9)

    async def charged() -> bool:
        return abs(sum((await gateway.compute_s()).values()) - spent_s) < 1e-4

    await until(charged, PATIENT_S)
    assert without_time(await gateway.used()) == sent
    shares = await gateway.compute_s()
    assert shares["a"] / spent_s == pytest.approx(2 / 3, abs=0.1)
    await _what_others_run_is_not_charged(gateway, triton_a)
    await _hanging_up_is_no_way_round_it(gateway)
    await _errors_count_and_unknown_models_do_not(gateway)
    await _the_metrics_say_the_same(gateway)
    await _it_is_shown(gateway)
    await _a_restart_keeps_the_month(gateway)


async def _what_others_run_is_not_charged(gateway: Accounts, server: LocalTriton) -> None:
    """A stranger sends the server itself as many rows as an anonymous caller the gateway."""
    before_s = await gateway.compute_s()
    spent_s = -await gateway.server_compute_s()
    strange = (asyncio.to_thread(ask_directly, server.grpc_address, 4) for _ in range(4))
    mine, *_ = await asyncio.gather(gateway.send_all([(None, 4)] * 4), *strange)
    spent_s += await gateway.server_compute_s()
    assert mine["anonymous"]["rows"] == 16
    assert spent_s >= 32 * MS / 1000

    async def charged() -> bool:
        return (await gateway.compute_s()).get("anonymous", 0.0) > 0.35 * spent_s

    await until(charged, PATIENT_S)
    await asyncio.sleep(1.0)  # for another word of the server
    after_s = await gateway.compute_s()
    assert after_s.pop("anonymous") < 0.65 * spent_s
    assert after_s == before_s


def ask_directly(address: str, rows: int) -> None:
    tensor = triton.InferInput("MS", [rows, 1], "INT32")
    tensor.set_data_from_numpy(np.full([rows, 1], MS, np.int32))
    with triton.InferenceServerClient(address) as client:
        client.infer(MODEL, [tensor])


async def _hanging_up_is_no_way_round_it(gateway: Accounts) -> None:
    """The server (2.51) is not told, and computes what the caller does not wait for."""
    before, spent_s = (await gateway.used())["b"], -await gateway.server_compute_s()
    body = rows_of(4, ms=400)
    async with await Connection.open(gateway.api_port) as client:
        client.send(infer(MODEL, body, **bearer(KEYS["b"])))

        async def is_there() -> bool:
            return bool((await gateway.get("/servers/a"))["in_flight_calls"])

        await until(is_there)

    async def charged() -> bool:
        used = (await gateway.used())["b"]
        return bool(used["compute_seconds"] - before["compute_seconds"] >= 1.6)

    await until(charged, PATIENT_S)
    spent_s += await gateway.server_compute_s()
    used = (await gateway.used())["b"]
    assert used["compute_seconds"] - before["compute_seconds"] <= spent_s + 1e-4
    changed = {unit: used[unit] - before[unit] for unit in ("requests", "errors", "rows")}
    assert changed == {"requests": 1, "errors": 1, "rows": 4}


async def _errors_count_and_unknown_models_do_not(gateway: Accounts) -> None:
    before = (await gateway.used())["a"]
    key = bearer(KEYS["a"])
    assert (await ask(gateway.api_port, infer(MODEL, b"{", **key))).status == 400
    assert (await ask(gateway.api_port, infer("unknown", b"{", **key))).status == 404
    assert (await ask(gateway.api_port, infer(MODEL, b"{", Authorization="no"))).status == 401

    async def counted() -> bool:
        return bool((await gateway.used())["a"]["errors"])

    await until(counted)
    usage = await gateway.usage("?tenant=a")
    assert [row["tenant"] for row in usage["tenants"]] == ["a"]
    (used,) = usage["tenants"][0]["models"]
    assert (used["requests"], used["errors"], used["rows"]) == (
        before["requests"] + 1,
        1,
        before["rows"],
    )


async def _the_metrics_say_the_same(gateway: Accounts) -> None:
    page = (await asyncio.to_thread(gateway.ops, "/metrics")).decode()
    found = re.findall(
        r'^triton_gateway_usage_(\w+)_total{model="sleep_rows",tenant="(\w+)"} (\S+)$', page, re.M
    )
    shown: dict[str, dict[str, float]] = {}
    for unit, tenant, amount in found:
        shown.setdefault(tenant, {})[unit] = float(amount)
    for tenant, used in (await gateway.used()).items():
        del used["model"]
        assert shown.pop(tenant) == pytest.approx(used)
    assert shown == {}


async def _it_is_shown(gateway: Accounts) -> None:
    done = await operate("usage", "--tenant", "a", ops_port=gateway.ops_port)
    assert (done.code, done.err) == (0, "")
    head, _, names, row, total = done.out.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d \(UTC\)", head)
    assert names.split() == [
        "TENANT",
        "MODEL",
        "REQUESTS",
        "ERRORS",
        "ROWS",
        "IN",
        "OUT",
        "COMPUTE",
    ]
    assert row.split()[:5] == ["a", MODEL, "7", "1", "18"]
    assert total.split()[:4] == ["all", "7", "1", "18"]
    assert max(map(len, done.out.splitlines())) <= 80
    exact = await operate("usage", "--tenant", "a", "--json", ops_port=gateway.ops_port)
    assert json.loads(exact.out) == await gateway.usage("?tenant=a")
    assert exact.out.startswith('{\n  "month": ')
    assert json.loads(exact.out)["kept_in"] == "file"
    nothing = await operate("usage", "--month", "2020-01", ops_port=gateway.ops_port)
    assert nothing.out == "2020-01: nothing used\n"
    wrong = await operate("usage", "--month", "May", ops_port=gateway.ops_port)
    assert (wrong.code, wrong.err) == (1, "month 'May' is none - write it as in 2026-11\n")


async def _a_restart_keeps_the_month(gateway: Accounts) -> None:
    before = await gateway.used()
    await gateway.send_all([("a", 1)] * 2)  # nobody has been told of these when it ends
    assert await gateway.end() == 0
    again = Accounts(yaml.safe_load(gateway.config_path.read_text()), gateway.folder / "again")
    await again.begin()
    try:
        await _the_month_goes_on(again, before)
    finally:
        await again.end()


async def _the_month_goes_on(gateway: Accounts, before: dict[str, dict[str, Any]]) -> None:
    after = await gateway.used()
    assert after["a"]["requests"] == before["a"]["requests"] + 2
    assert after["a"]["rows"] == before["a"]["rows"] + 2
    assert after["b"] == before["b"]
    sent = await gateway.send_all([("b", 1)])
    expected = before["b"]["requests"] + sent["b"]["requests"]

    async def counted() -> bool:
        return bool((await gateway.used())["b"]["requests"] == expected)

    await until(counted)


async def test_gateways_that_share_a_redis_have_the_same_months(
    triton_a: LocalTriton, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shared")
    redis = {"url": redis_server.url, "namespace": uuid.uuid4().hex, "timeout_s": 1.0}
    config = configuration({"a": triton_a.grpc_address}, redis=redis, **TENANTS)
    one = Accounts(config, folder / "one")
    other = Accounts(config, folder / "other")
    await one.begin()
    await other.begin()
    try:
        spent_s = -await one.server_compute_s()
        await asyncio.gather(one.send_all([("a", 2)] * 6), other.send_all([("a", 3), ("b", 3)] * 2))
        spent_s += await one.server_compute_s()

        async def complete() -> bool:
            used = [await each.used() for each in (one, other, one)]
            charged_s = sum(each["compute_seconds"] for each in used[2].values())
            return used[2]["a"]["rows"] == 18 and charged_s > 0.9 * spent_s

        await until(complete, PATIENT_S)
        used = await other.used()
        assert used["a"]["requests"] == 8
        assert (used["b"]["requests"], used["b"]["rows"]) == (2, 6)
        assert sum(each["compute_seconds"] for each in used.values()) <= spent_s * 1.001
        assert (await one.usage())["kept_in"] == "redis"
    finally:
        await asyncio.gather(one.end(), other.end())
    assert {"usage:by", "usage"} == {
        name.split(":1:")[1].rpartition(":")[0]
        for name in redis_server.ask("KEYS", f"{{{redis['namespace']}}}:1:usage*")  # type: ignore[attr-defined]
    }


@pytest.mark.accept
async def test_a_redis_that_comes_and_goes_changes_nothing_in_the_end(
    triton_a: LocalTriton, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two gateways under load for half a minute; Redis is slow, frozen, cut off and refused."""
    folder, proxy, chance = tmp_path_factory.mktemp("soak"), TcpProxy(), random.Random(7)
    await proxy.start(redis_server.port)
    redis = {"url": f"redis://127.0.0.1:{proxy.port}", "namespace": uuid.uuid4().hex}
    usage = {"flush_interval_s": 0.5}
    config = configuration({"a": triton_a.grpc_address}, redis=redis, usage=usage, **TENANTS)
    one = Accounts({**config, "workers": 2}, folder / "one")
    other = Accounts(config, folder / "other")
    await one.begin()
    await other.begin()
    sent, spent_s = Sent(), -await one.server_compute_s()

    async def load(gateway: Accounts, tenant: str, until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            for whose, used in (await gateway.send_all([(tenant, chance.randint(1, 4))])).items():
                found = sent.setdefault(whose, dict.fromkeys(used, 0))
                found.update({unit: found[unit] + amount for unit, amount in used.items()})

    async def trouble(until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            proxy.delay_s = chance.choice((0.0, 0.05, 0.6))
            await asyncio.sleep(1.0)
            proxy.freeze()
            await asyncio.sleep(1.0)
            proxy.thaw()
            proxy.cut_all()
            await asyncio.sleep(0.5)
            await proxy.stop()
            await asyncio.sleep(1.0)
            await proxy.start(redis_server.port)
        proxy.delay_s = 0.0

    try:
        until_s = asyncio.get_running_loop().time() + 30.0
        loads = (load(gateway, name, until_s) for gateway in (one, other) for name in "abab")
        await asyncio.gather(trouble(until_s), *loads)
        spent_s += await one.server_compute_s()

        async def complete() -> bool:
            with contextlib.suppress(HTTPError):  # the store is down for a moment yet
                await other.usage()
                used = await one.used()
                charged_s = sum(each["compute_seconds"] for each in used.values())
                return without_time(used) == sent and charged_s > 0.98 * spent_s
            return False

        await until(complete, PATIENT_S)
        used = await one.used()
        assert sum(each["compute_seconds"] for each in used.values()) <= spent_s * 1.001
        rows = {tenant: amounts["rows"] for tenant, amounts in sent.items()}
        expected = rows["a"] / sum(rows.values())
        assert used["a"]["compute_seconds"] / spent_s == pytest.approx(expected, abs=0.05)
    finally:
        await asyncio.gather(one.end(), other.end())
        await proxy.close()
