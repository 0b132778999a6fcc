"""An issuer of tokens on this machine: its keys, its key set over HTTP, and its bad days."""

import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER, AUDIENCE = "https://login.test/", "gateway"


def ec_key() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


def rsa_key() -> Any:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    """Signs with `keys`, by key id. `answer` replaces the key set it publishes."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": ec_key()}
        self.answer: web.Response | None = None
        self.asked = 0
        self.url = ""

    def token(self, key_id: str | None = "one", **changes: Any) -> str:
        """Sign a token; a claim that is None is left out."""
        key = changes.pop("key", None) or self.keys[key_id or "one"]
        algorithm = changes.pop("algorithm", "RS256" if hasattr(key, "decrypt") else "ES256")
        now_s = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": now_s + 600, "iat": now_s, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        headers = {"kid": key_id} if key_id else {}
        return jwt.encode(claims, key, algorithm=algorithm, headers=headers)

    def published(self) -> dict[str, Any]:
        return {"keys": [_public(key_id, key) for key_id, key in self.keys.items()]}

    async def _publish(self, _: web.Request) -> web.Response:
        self.asked += 1
        return self.answer or web.json_response(self.published())


def _public(key_id: str, key: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if hasattr(key, "decrypt") else jwt.algorithms.ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": key_id, "use": "sig"}


@contextlib.asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """Run an issuer on a free port until the block ends."""
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/keys", issuer._publish)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
        yield issuer
    finally:
        await runner.cleanup()
