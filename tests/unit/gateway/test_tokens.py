"""Tokens: which are good, and where the keys to judge them come from."""

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from gateway.identity.issuer import FetchRules, IssuerKeys
from gateway.identity.refused import Reason, Refused
from gateway.identity.tokens import TokenRules, Tokens
from tests.issuers import AUDIENCE, ISSUER, Issuer, ec_key, issuing, rsa_key

REFRESH_S, RETRY_S, STALE_S = 300.0, 10.0, 1000.0


class Judge:
    """What a gateway has to judge tokens, on a clock that is set by hand."""

    def __init__(self, issuer: Issuer, url: str = "") -> None:
        self.now_s = 0.0
        self.told: list[dict[str, Any]] = []
        rules = FetchRules(url or issuer.url, REFRESH_S, RETRY_S, STALE_S, timeout_s=5.0)
        self.keys = IssuerKeys(rules, clock=lambda: self.now_s, told=self._tell)
        self.tokens = Tokens(
            TokenRules(ISSUER, (AUDIENCE,), frozenset({"ES256", "RS256"}), leeway_s=5.0), self.keys
        )

    def _tell(self, event: str, **fields: Any) -> None:
        self.told.append(fields)

    async def good(self, token: str, later_s: float = 0.0) -> bool:
        await self.tokens.claims_of(token, time.time() + later_s)
        return True

    async def refusal(self, token: str, later_s: float = 0.0) -> Reason:
        with pytest.raises(Refused) as caught:
            await self.tokens.claims_of(token, time.time() + later_s)
        return caught.value.reason

    async def settle(self) -> None:
        """Wait for the fetch in the background."""
        if self.keys._fetching is not None:
            await self.keys._fetching


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as running:
        yield running


@pytest.fixture
def judge(issuer: Issuer) -> Judge:
    return Judge(issuer)


# --- which tokens are good


async def test_the_issuers_tokens_are_good_for_both_kinds_of_keys(
    issuer: Issuer, judge: Judge
) -> None:
    issuer.keys["two"] = rsa_key()
    claims = await judge.tokens.claims_of(issuer.token(team="x"), time.time())
    assert claims["team"] == "x"
    assert await judge.good(issuer.token("two"))
    assert await judge.good(issuer.token(aud=["else", AUDIENCE]))


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.test/"},
        {"iss": None},
        {"aud": "else"},
        {"aud": None},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": "soon"},
        {"nbf": int(time.time()) + 3600},
        {"iat": int(time.time()) + 3600},
        {"key": ec_key()},
        {"key": rsa_key()},
    ],
)
async def test_whatever_else_is_refused(
    issuer: Issuer, judge: Judge, changes: dict[str, Any]
) -> None:
    assert await judge.refusal(issuer.token(**changes)) is Reason.BAD_TOKEN


async def test_a_token_ends_with_its_time_also_when_it_is_remembered(
    issuer: Issuer, judge: Judge
) -> None:
    token = issuer.token()
    assert await judge.good(token)
    assert await judge.good(token, later_s=603)
    assert await judge.refusal(token, later_s=606) is Reason.EXPIRED


def part(value: dict[str, Any] | bytes) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_no_unsigned_token_and_no_public_key_as_a_shared_secret(
    issuer: Issuer, judge: Judge
) -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600}
    public = json.dumps(issuer.published()["keys"][0]).encode()
    for algorithm in ("none", "None", "NONE", "HS256"):
        head = part({"alg": algorithm, "kid": "one"})
        assert await judge.refusal(f"{head}.{part(claims)}.") is Reason.BAD_TOKEN
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims)}"
    signature = part(hmac.digest(public, signed.encode(), "sha256"))
    assert await judge.refusal(f"{signed}.{signature}") is Reason.BAD_TOKEN


async def test_a_key_is_for_the_algorithm_its_issuer_says(issuer: Issuer, judge: Judge) -> None:
    issuer.keys["one"] = rsa_key()
    (written,) = issuer.published()["keys"]
    issuer.answer = web.json_response({"keys": [written | {"alg": "PS256"}]})
    assert await judge.refusal(issuer.token()) is Reason.BAD_TOKEN


@pytest.mark.parametrize("token", ["", ".", "a.b.c", "x" * 20_000, "é.é.é", "a.b.c.d.e"])
async def test_what_is_no_token(judge: Judge, token: str) -> None:
    assert await judge.refusal(token) is Reason.BAD_TOKEN


async def test_a_token_without_a_key_id_has_the_only_key_there_is(
    issuer: Issuer, judge: Judge
) -> None:
    token = issuer.token(None)
    assert await judge.good(token)
    issuer.keys["two"] = ec_key()
    assert await Judge(issuer).refusal(token) is Reason.BAD_TOKEN


# --- where the keys come from


async def test_keys_are_fetched_once(issuer: Issuer, judge: Judge) -> None:
    for _ in range(5):
        assert await judge.good(issuer.token())
    assert issuer.asked == 1


async def test_a_new_key_is_found_by_its_first_token(issuer: Issuer, judge: Judge) -> None:
    await judge.good(issuer.token())
    judge.now_s = RETRY_S
    issuer.keys = {"two": ec_key()}
    assert await judge.good(issuer.token("two"))
    assert issuer.asked == 2


async def test_strangers_cannot_make_the_gateway_trouble_the_issuer(
    issuer: Issuer, judge: Judge
) -> None:
    for number in range(20):
        forged = issuer.token(f"made-up-{number}", key=ec_key())
        assert await judge.refusal(forged) is Reason.BAD_TOKEN
    assert issuer.asked == 1


async def test_a_withdrawn_key_counts_no_more_though_its_token_is_remembered(
    issuer: Issuer, judge: Judge
) -> None:
    token = issuer.token()
    await judge.good(token)
    issuer.keys = {"two": ec_key()}
    judge.now_s = REFRESH_S
    assert await judge.good(token)  # the keys are fetched meanwhile
    await judge.settle()
    assert await judge.refusal(token) is Reason.BAD_TOKEN


async def test_the_keys_outlast_an_outage_of_the_issuer(issuer: Issuer, judge: Judge) -> None:
    await judge.good(issuer.token())
    issuer.answer = web.Response(status=503)
    judge.now_s = REFRESH_S + STALE_S - 1
    assert await judge.good(issuer.token())
    await judge.settle()
    assert judge.told == [{"url": issuer.url, "reason": "status 503", "known": 1}]
    judge.now_s += 2
    assert await judge.refusal(issuer.token()) is Reason.UNVERIFIABLE
    issuer.answer = None
    judge.now_s += RETRY_S
    assert await judge.refusal(issuer.token()) is Reason.UNVERIFIABLE  # nobody waits any more
    await judge.settle()
    assert await judge.good(issuer.token())
    judge.now_s += RETRY_S
    issuer.keys = {"two": ec_key()}
    assert await judge.good(issuer.token("two"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.Response(status=302, headers={"Location": "/keys"}), "status 302"),
        (lambda: web.Response(body=b"<html>"), "Expecting value: line 1 column 1 (char 0)"),
        (lambda: web.json_response([1]), "not a JSON Web Key Set"),
        (lambda: web.json_response({"keys": {}}), "not a JSON Web Key Set"),
        (lambda: web.json_response({"keys": []}), "no key there can be used"),
        (lambda: web.json_response({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}), "no key there"),
        (lambda: web.json_response({"keys": [1, {"kty": "EC", "crv": "no"}]}), "no key there"),
        (lambda: web.json_response({"keys": [{"kty": "RSA", "use": "enc"}]}), "no key there"),
        (lambda: web.Response(body=b" " * 600_000), "more than 524288 bytes"),
    ],
)
async def test_a_key_set_of_no_use_is_told(
    issuer: Issuer, judge: Judge, answer: Any, reason: str
) -> None:
    issuer.answer = answer()
    assert await judge.refusal(issuer.token()) is Reason.UNVERIFIABLE
    (told,) = judge.told
    assert told["reason"].startswith(reason)


async def test_nobody_listening_is_told(issuer: Issuer) -> None:
    judge = Judge(issuer, url="http://127.0.0.1:1/keys")
    assert await judge.refusal(issuer.token()) is Reason.UNVERIFIABLE
    assert await judge.refusal(issuer.token()) is Reason.UNVERIFIABLE
    assert len(judge.told) == 1
    assert judge.told[0]["known"] == 0


async def test_remembered_tokens_are_bounded(
    issuer: Issuer, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.identity.tokens._MOST_REMEMBERED", 2)
    tokens = [issuer.token(number=number) for number in range(4)]
    for token in tokens:
        await judge.good(token)
    assert len(judge.tokens._remembered) == 2
    assert not any(token.encode() in judge.tokens._remembered for token in tokens)
