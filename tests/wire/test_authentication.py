"""Nobody gets in who is not known, and nobody who is gets at what is not theirs."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.edge.routes import ROUTES, is_public, match
from tests import clients
from tests.certificates import Authority
from tests.clients import Connection, Reply, request
from tests.fakes.triton import FakeTriton
from tests.issuers import AUDIENCE, ISSUER, Issuer, issuing
from tests.reloading import Reloading, config_of, reloading
from tests.serving import Serving, fake_triton, serving
from tests.tenants import KEYS, WRONG, bearer, hashed, sections

MODEL = "/v2/models/echo"
OF_MODELS = [
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/repository/index"),
    ("GET", MODEL),
    ("GET", f"{MODEL}/ready"),
    ("GET", f"{MODEL}/config"),
    ("GET", f"{MODEL}/stats"),
    ("POST", f"{MODEL}/infer"),
    ("POST", f"{MODEL}/versions/1/infer"),
    ("POST", f"{MODEL}/generate"),
    ("POST", f"{MODEL}/generate_stream"),
]
CONTROL = [
    ("POST", "/v2/repository/models/echo/load"),
    ("POST", "/v2/repository/models/echo/unload"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/trace/setting"),
    ("GET", f"{MODEL}/trace/setting"),
    ("POST", f"{MODEL}/trace/setting"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
]
EVERY_ROUTE = [*OF_MODELS, *CONTROL, ("GET", "/v2/systemsharedmemory/status")]
KEY_IN_URL = f"?api_key={KEYS['a']}&access_token={KEYS['a']}&X-API-Key={KEYS['a']}"


def variants(path: str) -> list[str]:
    """Return other ways to write a path, most of which are another path."""
    return [
        path,
        f"{path}{KEY_IN_URL}",
        f"{path}#x",
        f"{path}/",
        f"/{path}",
        path.replace("/v2", "/v2/", 1),
        path.replace("/v2", "/%76%32", 1),
        path.replace("/", "%2F"),
        path.replace("/v2", "/V2", 1),
        f"/v2/health/live/..{path.removeprefix('/v2')}",
        f"/v2/health/live%2F..%2F..{path}",
        f"http://elsewhere{path}",
        f"http://user:{KEYS['a']}@elsewhere{path}",
        f"http://elsewhere/v2/health/live?{path}",
    ]


def written(method: str, path: str, headers: dict[str, str] | None = None) -> bytes:
    body = clients.tensor(1.5) if method == "POST" else None
    return request(method, path, body, headers)


@pytest.fixture
async def servers(fake: FakeTriton) -> AsyncIterator[dict[str, FakeTriton]]:
    async with fake_triton("other", "other-2", server_id="other") as other:
        yield {"a": fake, "b": other}


@contextlib.asynccontextmanager
async def guarded(
    servers: dict[str, FakeTriton], mode: str = "enforce", **auth: Any
) -> AsyncIterator[Serving]:
    async with serving(servers, **sections(mode, **auth)) as running:
        yield running
        assert running.tracebacks == []


async def metrics(gateway: Serving) -> dict[str, float]:
    gateway.gateway.flush()
    page = (await gateway.ops("/metrics")).body.decode()
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def refusals(gateway: Serving) -> dict[tuple[str, str, str], float]:
    """Return the refusals counted, by mode, reason and tenant."""
    found = {}
    for name, value in (await metrics(gateway)).items():
        if name.startswith("triton_gateway_auth_refusals_total{"):
            labels = dict(pair.split("=") for pair in name[:-1].partition("{")[2].split(","))
            key = (labels["mode"], labels["reason"], labels["tenant"])
            found[tuple(text.strip('"') for text in key)] = value
    return found  # type: ignore[return-value]


def shape(reply: Reply) -> tuple[int, bytes, str | None]:
    """Return all of an answer that does not differ from request to request."""
    return reply.status, reply.body, reply.headers.get("content-type")


# --- the route table


def test_every_route_is_walked() -> None:
    assert {match(method, path).name for method, path in EVERY_ROUTE} == ROUTES


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(WRONG),
        {"X-API-Key": WRONG},
        bearer(KEYS["a"][:-1]),
        {"Authorization": f"Basic {KEYS['a']}"},
        {"Authorization": KEYS["a"]},
        {"Cookie": f"Authorization=Bearer {KEYS['a']}"},
        {"X-Forwarded-For": "127.0.0.1"},
    ],
)
async def test_nothing_but_the_public_routes_answers_a_stranger(
    fake: FakeTriton, headers: dict[str, str]
) -> None:
    async with guarded({"a": fake}) as gateway:
        for method, path in EVERY_ROUTE:
            for target in variants(path):
                for verb in (method, "HEAD", "OPTIONS", method.lower()):
                    async with await Connection.open(gateway.port) as connection:
                        connection.send(written(verb, target, headers))
                        reply = await connection.reply(head_only=verb == "HEAD")
                    if is_public(verb, target):
                        assert (reply.status, reply.body) == (200, b"")
                    elif reply.status != 400:  # bad HTTP, before anybody asks who sends it
                        assert reply.status == 401, (verb, target)
                        assert reply.headers["www-authenticate"] == "Bearer"
                        assert verb == "HEAD" or reply.error
        assert fake.infer_started == 0
        assert not any("tgk_" in str(event) for event in gateway.events())


def test_only_two_paths_are_public() -> None:
    public = {
        target for _, path in EVERY_ROUTE for target in variants(path) if is_public("GET", target)
    }
    paths = {target.partition("?")[0].partition("#")[0] for target in public}
    hosts = ("", "http://elsewhere", f"http://user:{KEYS['a']}@elsewhere")
    assert paths == {f"{host}/v2/health/{leaf}" for host in hosts for leaf in ("live", "ready")}
    assert not any(is_public(verb, "/v2/health/live") for verb in ("HEAD", "POST", "get"))


async def test_whoever_is_known_gets_what_there_is_without_authentication(
    servers: dict[str, FakeTriton],
) -> None:
    async with serving(servers) as usual, guarded(servers) as gateway:
        for method, path in OF_MODELS:
            before = await usual.ask(written(method, path))
            for headers in (
                bearer(KEYS["admin"]),
                {"X-API-Key": KEYS["admin"]},
                {"authorization": f"bearer  {KEYS['admin']}"},
                bearer(KEYS["admin"]) | {"X-API-Key": KEYS["admin"]},
            ):
                after = await gateway.ask(written(method, path, headers))
                if "stats" in path:
                    assert after.status == before.status == 200
                else:
                    assert shape(after) == shape(before)


async def test_changing_servers_needs_the_scope_admin_and_nothing_else(
    servers: dict[str, FakeTriton],
) -> None:
    switched_on = {"model_control": {"enabled": True}, "server_settings": {"enabled": True}}
    async with (
        serving(servers) as usual,
        serving(servers, **switched_on) as free,
        serving(servers, **sections()) as guarded_,
        serving(servers, **sections(), **switched_on) as both,
        serving(servers, **sections("observe")) as observed,
    ):
        for method, path in CONTROL:
            for gateway in (guarded_, both):
                reply = await gateway.ask(written(method, path, bearer(KEYS["a"])))
                assert (reply.status, reply.error) == (403, "this needs the scope 'admin'")
                admin = await gateway.ask(written(method, path, bearer(KEYS["admin"])))
                assert admin.status == (await free.ask(written(method, path))).status != 403
            before = await usual.ask(written(method, path))
            after = await observed.ask(written(method, path, bearer(KEYS["a"])))
            assert after.status == before.status
        assert await refusals(both) == {("enforce", "scope", "a"): len(CONTROL)}
        assert await refusals(observed) == {("observe", "scope", "a"): len(CONTROL)}


async def test_observed_strangers_are_answered_as_before_and_counted(
    fake: FakeTriton,
) -> None:
    async with serving({"a": fake}) as usual, guarded({"a": fake}, "observe") as gateway:
        # (The scripted server has no settings that could be read.)
        walked = [step for step in EVERY_ROUTE if step[0] == "POST" or step not in CONTROL]
        for method, path in walked:
            for target in (path, f"/{path}", f"{path}/", f"{path}?x"):
                before = await usual.ask(written(method, target))
                after = await gateway.ask(written(method, target, bearer(WRONG)))
                assert after.status == before.status
                if "stats" not in target:
                    assert shape(after) == shape(before)
        asked = 4 * len(walked) - 2 * 2  # two public routes, each twice as itself
        assert await refusals(gateway) == {("observe", "unknown_key", "unknown"): asked}
        lines = [event for event in gateway.events("request") if "would_refuse" in event]
        assert len(lines) == asked
        assert {line["tenant"] for line in lines} == {"anonymous"}


# --- who is known


@pytest.mark.parametrize(
    ("headers", "reason", "tenant"),
    [
        ([], "missing", "anonymous"),
        ([("Authorization", f"Bearer {WRONG}")], "unknown_key", "unknown"),
        ([("Authorization", "Bearer a.b.c")], "unknown_key", "unknown"),
        ([("X-API-Key", "guess")], "unknown_key", "unknown"),
        ([("X-API-Key", "tgk_\xe9")], "unknown_key", "unknown"),
        ([("Authorization", f"Bearer {KEYS['late']}")], "expired", "b"),
        ([("Authorization", "Basic dTpw")], "malformed", "unknown"),
        ([("Authorization", "")], "malformed", "unknown"),
        ([("Authorization", f"Bearer {KEYS['a']}")] * 2, "malformed", "unknown"),
        (
            [("Authorization", f"Bearer {KEYS['a']}"), ("X-API-Key", KEYS["b"])],
            "conflict",
            "unknown",
        ),
        (
            [("Authorization", f"Bearer {KEYS['a']}"), ("X-API-Key", WRONG)],
            "unknown_key",
            "unknown",
        ),
    ],
)
async def test_why_a_caller_is_refused_is_counted_and_logged(
    fake: FakeTriton, headers: list[tuple[str, str]], reason: str, tenant: str
) -> None:
    async with guarded({"a": fake}) as gateway:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        data = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode("latin-1")
        assert (await gateway.ask(data)).status == 401
        assert await refusals(gateway) == {("enforce", reason, tenant): 1}
        (line,) = gateway.events("request")
        assert (line["refused"], line["tenant"], line["outcome"]) == (
            reason,
            tenant,
            "unauthenticated",
        )


async def test_the_anonymous_are_known_where_that_is_allowed(
    servers: dict[str, FakeTriton],
) -> None:
    config = sections(allow_anonymous=True)
    config["tenants"]["anonymous"] = {"models": ["other"]}
    async with serving(servers, **config) as gateway:
        statuses = [(await gateway.infer(model)).status for model in ("other", "echo")]
        assert statuses == [200, 404]
        assert (await gateway.ask(request("GET", "/v2", headers=bearer(WRONG)))).status == 401


async def test_the_body_of_a_stranger_is_not_read(fake: FakeTriton) -> None:
    async with guarded({"a": fake}) as gateway:
        for target in (f"{MODEL}/infer", "/v2/health/live"):
            method = "GET" if "live" in target else "POST"
            head = {"Content-Length": "1000000", "Expect": "100-continue"}
            async with await Connection.open(gateway.port) as connection:
                connection.send(request(method, target, headers=head))
                reply = await connection.reply()
                assert reply.status == (200 if "live" in target else 401)
                assert reply.headers["connection"] == "close"
                connection.send(b"x" * 1000)
        assert gateway.api._inbound.held == 0
        assert {line["bytes_in"] for line in gateway.events("request")} == {0}


async def test_a_connection_goes_on_behind_a_refusal_without_a_body(fake: FakeTriton) -> None:
    async with guarded({"a": fake}) as gateway, await Connection.open(gateway.port) as connection:
        assert (await connection.ask(request("GET", "/v2"))).status == 401
        known = request("GET", "/v2", headers=bearer(KEYS["a"]))
        assert (await connection.ask(known)).status == 200


async def test_each_request_of_a_connection_is_asked(fake: FakeTriton) -> None:
    async with guarded({"a": fake}) as gateway, await Connection.open(gateway.port) as connection:
        known = request("GET", "/v2", headers=bearer(KEYS["a"]))
        connection.send(known + request("GET", "/v2") + known)
        assert [(await connection.reply()).status for _ in range(3)] == [200, 401, 200]


async def test_the_tenant_of_a_request_is_in_its_line_and_in_the_metrics(
    fake: FakeTriton,
) -> None:
    async with guarded({"a": fake}) as gateway:
        await gateway.infer(**bearer(KEYS["a"]))
        found = await metrics(gateway)
        name = 'triton_gateway_tenant_requests_total{model="echo",outcome="ok",tenant="a"}'
        assert found[name] == 1
        assert gateway.events("request")[0]["tenant"] == "a"


# --- what is theirs


async def test_a_forbidden_model_looks_like_one_that_is_not_there(
    servers: dict[str, FakeTriton],
) -> None:
    async with guarded(servers) as gateway:

        async def answer(method: str, model: str, leaf: str, body: bytes | None) -> Any:
            target = f"/v2/models/{model}{leaf}"
            reply = await gateway.ask(request(method, target, body, bearer(KEYS["a"])))
            headers = set(reply.headers)
            return reply.status, reply.body.replace(model.encode(), b"MODEL"), headers

        for version in ("", "/versions/1", "/versions/99"):
            for leaf in ("", "/config", "/ready", "/stats", "/infer", "/generate"):
                for method in ("GET", "POST"):
                    for body in (None, b"{", b"x" * 100_000):
                        forbidden = await answer(method, "other", version + leaf, body)
                        unknown = await answer(method, "nobody", version + leaf, body)
                        assert forbidden == unknown, (method, version, leaf)
                        assert forbidden[0] in (400, 404, 405)
        assert ("enforce", "model", "a") in await refusals(gateway)


async def test_lists_have_only_what_a_tenant_may_use(servers: dict[str, FakeTriton]) -> None:
    aliases = {
        "other-alias": {"arms": [{"model": "echo", "weight": 1}, {"model": "other", "weight": 1}]},
        "hidden": {"arms": [{"model": "other", "weight": 1}]},
    }
    async with serving(servers, **sections(), aliases=aliases) as gateway:

        async def names(who: str) -> list[set[str]]:
            key = bearer(KEYS[who])
            models = (await gateway.ask(request("GET", "/v2/models", headers=key))).json
            stats = (await gateway.ask(request("GET", "/v2/models/stats", headers=key))).json
            index = (await gateway.ask(request("POST", "/v2/repository/index", b"", key))).json
            rows = (models["models"], models["aliases"], stats["model_stats"], index)
            return [{row["name"] for row in found} for found in rows]

        every = {"echo", "other", "other-2"}
        assert await names("a") == [{"echo"}, set(), {"echo"}, {"echo"}]
        theirs = {"other", "other-2"}
        assert await names("b") == [theirs, {"other-alias"}, theirs, theirs]
        assert await names("admin") == [every, {"other-alias", "hidden"}, every, every]
        models = (await gateway.ask(request("GET", "/v2/models", headers=bearer(KEYS["b"])))).json
        (alias,) = models["aliases"]
        assert [arm["model"] for arm in alias["arms"]] == ["other"]


async def test_an_alias_alone_is_enough(servers: dict[str, FakeTriton]) -> None:
    aliases = {"other-alias": {"arms": [{"model": "echo", "weight": 1}]}}
    async with serving(servers, **sections(), aliases=aliases) as gateway:
        key = bearer(KEYS["b"])
        assert (await gateway.infer("other-alias", **key)).status == 200
        assert (await gateway.infer("echo", **key)).status == 404


async def test_an_observed_tenant_sees_and_uses_everything(servers: dict[str, FakeTriton]) -> None:
    async with guarded(servers, "observe") as gateway:
        key = bearer(KEYS["a"])
        assert (await gateway.infer("other", **key)).status == 200
        ready = await gateway.ask(request("GET", "/v2/models/other/ready", headers=key))
        assert ready.status == 200
        models = (await gateway.ask(request("GET", "/v2/models", headers=key))).json["models"]
        assert len(models) == 3
        assert await refusals(gateway) == {("observe", "model", "a"): 2}
        assert {line["tenant"] for line in gateway.events("request")} == {"a"}


# --- changes while it runs


async def test_a_key_is_rotated_by_a_reload(fake: FakeTriton, tmp_path: Path) -> None:
    def config(*names: str) -> dict[str, Any]:
        parts = sections()
        parts["tenants"]["a"]["keys"] = [hashed(name) for name in names]
        del parts["tenants"]["b"]
        return parts

    async def statuses(running: Reloading) -> list[int]:
        return [
            (await running.gateway.infer(**bearer(KEYS[name]))).status for name in ("a", "late")
        ]

    async with reloading(tmp_path, {"a": fake}, **config("a")) as running:
        for names, expected in (
            (("a",), [200, 401]),
            (("a", "late"), [200, 200]),
            (("late",), [401, 200]),
        ):
            reloaded = await running.reload(config_of({"a": fake}, **config(*names)))
            assert reloaded.status == 200
            assert await statuses(running) == expected


async def test_a_file_of_keys_is_read_again(fake: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{hashed('a')['hash']}\n")
    parts = {"auth": {"mode": "enforce"}, "tenants": {"a": {"key_files": [str(file)]}}}
    async with reloading(tmp_path, {"a": fake}, **parts) as running:
        assert (await running.gateway.infer(**bearer(KEYS["a"]))).status == 200
        assert (await running.reload()).json["changed"] is False
        file.write_text(f"{hashed('b')['hash']} 2099-01-01\n")
        reloaded = (await running.reload()).json
        assert reloaded["changed"] is True
        assert reloaded["settings"] == [
            {"key": "tenants.a.key_files", "from": "1 keys", "to": "1 keys, 1 of them new"}
        ]
        statuses = [(await running.gateway.infer(**bearer(KEYS[name]))).status for name in "ab"]
        assert statuses == [401, 200]
        file.write_text(KEYS["b"])
        refused = await running.reload()
        assert refused.status == 422
        assert f"{file}:1: not the hash of a key" in refused.body.decode()
        assert KEYS["b"] not in refused.body.decode()
        assert (await running.gateway.infer(**bearer(KEYS["b"]))).status == 200


# --- tokens


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as running:
        yield running


def with_tokens(issuer: Issuer) -> dict[str, Any]:
    parts = sections(
        jwt={
            "issuer": ISSUER,
            "audience": [AUDIENCE],
            "jwks_url": issuer.url,
            "tenant_claim": "tenant",
            "models_claim": "models",
        }
    )
    parts["tenants"]["a"]["claims"] = {"team": ["vision"]}
    return parts


async def test_the_bearer_of_a_token_is_a_tenant(
    servers: dict[str, FakeTriton], issuer: Issuer
) -> None:
    async with serving(servers, **with_tokens(issuer)) as gateway:

        async def status(model: str, **claims: Any) -> int:
            return (await gateway.infer(model, **bearer(issuer.token(**claims)))).status

        assert await status("echo", team="vision") == 200
        assert await status("other", team="vision") == 404
        assert await status("other", tenant="b") == 200
        assert await status("other", tenant="b", models=["other-2"]) == 404
        assert await status("other", tenant="nobody") == 401
        assert await status("other", tenant="b", aud="else") == 401
        assert await status("other", tenant="b", exp=1) == 401
        tenants = {line["tenant"] for line in gateway.events("request")}
        assert tenants == {"a", "b", "unknown"}
        assert not any("ey" + "J" in str(event) for event in gateway.events())


async def test_keys_of_the_issuer_outlast_a_reload_while_it_is_out_of_reach(
    fake: FakeTriton, issuer: Issuer, tmp_path: Path
) -> None:
    parts = with_tokens(issuer)
    async with reloading(tmp_path, {"a": fake}, **parts) as running:
        key = bearer(issuer.token(team="vision"))
        assert (await running.gateway.infer(**key)).status == 200
        issuer.url, asked = "", issuer.asked
        parts["tenants"]["b"]["tier"] = "gold"
        assert (await running.reload(config_of({"a": fake}, **parts))).status == 200
        assert (await running.gateway.infer(**key)).status == 200
        assert issuer.asked == asked


async def test_without_the_issuers_keys_nobody_can_tell(fake: FakeTriton, issuer: Issuer) -> None:
    parts = with_tokens(issuer)
    parts["auth"]["jwt"]["jwks_url"] = "http://127.0.0.1:1/keys"
    async with serving({"a": fake}, **parts) as gateway:
        reply = await gateway.infer(**bearer(issuer.token(team="vision")))
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert (await gateway.infer(**bearer(KEYS["a"]))).status == 200
        assert await refusals(gateway) == {("enforce", "unverifiable", "unknown"): 1}
        (event,) = gateway.events("token keys not fetched")
        assert event["known"] == 0


# --- certificates and addresses


async def test_a_client_certificate_is_a_tenant(fake: FakeTriton, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("server", server=True)
    tls = {
        "cert_file": str(server.cert),
        "key_file": str(server.key),
        "client_ca_file": str(authority.ca),
    }
    parts = sections()
    parts["tenants"]["a"]["certificates"] = ["CN=app"]

    def shows(name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(authority.ca))
        pair = authority.issue(name, server=False)
        context.load_cert_chain(pair.cert, pair.key)
        return context

    async with serving({"a": fake}, **parts, api={"tls": tls}) as gateway:

        async def status(context: ssl.SSLContext, *who: str) -> int:
            headers = bearer(KEYS[who[0]]) if who else {}
            data = clients.infer(**headers)
            return (await clients.ask(gateway.port, data, tls=context)).status

        app, stranger = shows("app"), shows("stranger")
        assert await status(app) == 200
        assert await status(app, "a") == 200
        assert await status(app, "b") == 401
        assert await status(stranger) == 401
        assert await status(stranger, "a") == 200
        assert ("enforce", "conflict", "unknown") in await refusals(gateway)


async def test_an_address_is_a_tenants_and_only_proxies_are_believed(fake: FakeTriton) -> None:
    async def status(gateway: Serving, *forwarded: str) -> tuple[int, str]:
        headers = "".join(f"X-Forwarded-For: {value}\r\n" for value in forwarded)
        data = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()
        status = (await gateway.ask(data)).status
        return status, gateway.events("request")[-1]["caller"]

    def config(network: str, **auth: Any) -> dict[str, Any]:
        return {
            "auth": {"mode": "enforce", **auth},
            "tenants": {"a": {"networks": [network]}},
        }

    async with serving({"a": fake}, **config("127.0.0.0/8")) as gateway:
        assert await status(gateway) == (200, "127.0.0.1")
        assert await status(gateway, "9.9.9.9") == (200, "127.0.0.1")
        headers = bearer(WRONG)
        assert (await gateway.ask(request("GET", "/v2", headers=headers))).status == 401
    async with serving({"a": fake}, **config("10.0.0.0/8")) as gateway:
        assert await status(gateway, "10.0.0.1") == (401, "127.0.0.1")
    proxies = ["127.0.0.1", "192.168.0.0/16"]
    async with serving({"a": fake}, **config("10.0.0.0/8", trusted_proxies=proxies)) as gateway:
        assert await status(gateway, "10.0.0.1") == (200, "10.0.0.1")
        assert await status(gateway, "9.9.9.9, 10.0.0.1, 192.168.3.4") == (200, "10.0.0.1")
        assert await status(gateway, "9.9.9.9", "[::ffff:10.0.0.1]:77") == (200, "10.0.0.1")
        assert await status(gateway, "10.0.0.1:55, 192.168.0.1") == (200, "10.0.0.1")
        assert await status(gateway, "10.0.0.1, 9.9.9.9") == (401, "9.9.9.9")
        assert await status(gateway, "10.0.0.1, nonsense") == (401, "127.0.0.1")
        assert await status(gateway) == (401, "127.0.0.1")


# --- what never shows


async def test_a_key_shows_nowhere(fake: FakeTriton) -> None:
    marks = [KEYS["a"], WRONG, KEYS["late"]]
    seen: list[bytes] = []
    async with guarded({"a": fake}) as gateway:
        for key in marks:
            for headers in (bearer(key), {"X-API-Key": key}, {"Authorization": f"Basic {key}"}):
                for target in (
                    f"/v2{KEY_IN_URL}",
                    f"/v2/models/{key}",
                    f"/{key}",
                    f"{MODEL}/infer?key={key}",
                    f"/v2/models/{key}/infer",
                ):
                    for method in ("GET", "POST"):
                        more = headers | {"X-Request-Timeout-Ms": key}
                        for given in (headers, more):
                            reply = await gateway.ask(written(method, target, given))
                            if f"/models/{key}" not in target:  # which names a model
                                seen += [reply.body, str(reply.headers).encode()]
        async with await Connection.open(gateway.port) as connection:
            connection.send(f"GET /v2 HTTP/1.1\r\nAuthorization Bearer {WRONG}\r\n\r\n".encode())
            seen.append((await connection.reply()).body)
        gateway.gateway.flush()
        seen += [(await gateway.ops(path)).body for path in ("/metrics", "/fleet")]
        seen.append(str(gateway.events()).encode())
    for key in marks:
        secret = key[17:].encode()
        assert not any(secret in text for text in seen)
        assert not any(secret[:12] in text for text in seen)


async def test_requests_under_way_keep_who_they_are_of(fake: FakeTriton, tmp_path: Path) -> None:
    parts = sections()
    async with reloading(tmp_path, {"a": fake}, **parts) as running:
        fake.models["echo"].hang()
        asking = asyncio.ensure_future(running.gateway.infer(**bearer(KEYS["a"])))
        await fake.until(lambda: fake.infer_started == 1)
        del parts["tenants"]["a"]
        assert (await running.reload(config_of({"a": fake}, **parts))).status == 200
        fake.models["echo"].release()
        assert (await asking).status == 200
        running.gateway.gateway.flush()
        assert running.gateway.events("request")[-1]["tenant"] == "a"
