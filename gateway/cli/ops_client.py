"""Talks to the ops listener of a running gateway, for the operators' commands.

Decides how the listener is found and the key given, and turns every way in which that can fail into
one line that says what to do. The key is never sent to anywhere else: no proxy is asked, and no
redirect followed.
"""

import getpass
import http.client
import json
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from config.secrets import Secret
from gateway.cli.refusal import fail, refuse
from gateway.cli.text import plain

KEY_VARIABLE = "TRITON_GATEWAY_OPS_KEY"
URL_VARIABLE = "TRITON_GATEWAY_OPS"

_TIMEOUT_S = 10.0
_LIMIT_BYTES = 256 * 1024 * 1024
_HOW_TO_GIVE_THE_KEY = f"put it into {KEY_VARIABLE}, or name its file with --key-file"

OpsUrl = Annotated[
    str,
    typer.Option("--ops", metavar="URL", envvar=URL_VARIABLE, help="The gateway's ops listener."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file", help=f"File with the ops key; else it is taken from {KEY_VARIABLE}."
    ),
]
Version = Annotated[int | None, typer.Option("--version", min=1, help="One version only.")]
Server = Annotated[str | None, typer.Option("--server", help="On one server only.")]
DEFAULT_URL = "http://127.0.0.1:8081"


class OpsError(Exception):
    """The listener could not be asked, or said no; the text is one line for the operator.

    `problems` are the reasons one by one, if the listener gave several.
    """

    def __init__(self, text: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(text)


class OpsClient:
    """Asks one listener. Methods raise OpsError."""

    def __init__(self, url: str, *, key: str | None, actor: str, timeout_s: float) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._headers = {"X-Actor": actor, **({"Authorization": f"Bearer {key}"} if key else {})}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def get(self, *path: str, **query: object) -> Any:
        """Return the JSON at a path, whose parts may hold any character."""
        return self._ask("GET", path, query, None)

    def post(self, *path: str, body: bytes | None = None, **query: object) -> Any:
        """Give a command and return the JSON it is answered with."""
        return self._ask("POST", path, query, body)

    def _ask(
        self, method: str, path: tuple[str, ...], query: Mapping[str, object], body: bytes | None
    ) -> Any:
        where = "/".join(urllib.parse.quote(part, safe="") for part in path)
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{self.url}/{where}?{urllib.parse.urlencode(given, doseq=True)}"
        headers = {"Content-Type": "application/json"} if body else {}
        request = urllib.request.Request(
            target, data=body, method=method, headers={**self._headers, **headers}
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read(_LIMIT_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except urllib.error.URLError as error:
            raise OpsError(self._unreachable(error.reason)) from None
        except OSError as error:
            raise OpsError(self._unreachable(error)) from None
        except (http.client.HTTPException, ValueError):
            raise OpsError(self._stranger("what it says is no answer of one")) from None

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        if error.code == http.HTTPStatus.UNAUTHORIZED:
            wrong = "Authorization" in self._headers
            said = "does not take this key; for another one," if wrong else "wants its key:"
            raise OpsError(f"{self.url} {said} {_HOW_TO_GIVE_THE_KEY}")
        try:
            said = json.loads(error.read(_LIMIT_BYTES))
            text, _ = said["error"], said["code"]  # the refusals of an API have no code
            problems = said.get("problems", ())
        except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException):
            raise OpsError(self._stranger(f"it answers {error.code}")) from None
        raise OpsError(plain(text), problems)

    def _unreachable(self, reason: object) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({reason.verify_message})"
            return f"{self.url}: {why} - name the file of its CA in SSL_CERT_FILE"
        if isinstance(reason, ssl.SSLError):
            return f"{self.url}: it does not speak TLS as expected - is it http:// there?"
        if isinstance(reason, TimeoutError):
            return (
                f"{self.url}: no answer within {self._timeout_s:g} s - is the gateway still alive?"
            )
        if isinstance(reason, ConnectionResetError):
            return f"{self.url}: it hung up ({reason}) - is it https:// there?"
        said = reason.strerror if isinstance(reason, OSError) else None
        return (
            f"{self.url}: no ops listener there ({plain(said or str(reason))}) - is the gateway"
            f" running? Its address is given with --ops or in {URL_VARIABLE}"
        )

    def _stranger(self, why: str) -> str:
        return (
            f"{self.url}: not the ops listener of a gateway ({why}) - give the address in `ops` of"
            " its configuration, not the one of its API"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def connect(url: str, key_file: Path | None, *, timeout_s: float | None = None) -> OpsClient:
    """Return the client, or refuse the address or the key."""
    return OpsClient(
        _checked(url), key=_key(key_file), actor=_actor(), timeout_s=timeout_s or _TIMEOUT_S
    )


def ask_or_fail(client: OpsClient, *path: str, **query: object) -> Any:
    """Return the JSON at a path, or end the command with what went wrong."""
    try:
        return client.get(*path, **query)
    except OpsError as error:
        fail(error)


def command_or_fail(
    client: OpsClient, *path: str, body: bytes | None = None, **query: object
) -> Any:
    """Give a command and return its answer; warnings are shown, a refusal ends the command."""
    try:
        done = client.post(*path, body=body, **query)
    except OpsError as error:
        fail(error)
    for warning in done["warnings"]:
        typer.echo(f"warning: {plain(warning)}", err=True)
    return done


def _checked(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not url.isprintable() or " " in url:
        refuse(f"--ops: {plain(url)!r} is no address - write it like {DEFAULT_URL}")
    if parts.username is not None or parts.password is not None:
        refuse(f"--ops: the address holds no key - {_HOW_TO_GIVE_THE_KEY}")
    return url.rstrip("/")


def _key(key_file: Path | None) -> str | None:
    try:
        if key_file is not None:
            return Secret.model_construct(file=key_file).reveal(os.environ)
        if os.environ.get(KEY_VARIABLE):
            return Secret(env=KEY_VARIABLE).reveal(os.environ)
    except ValueError as error:
        refuse(f"the ops key: {error}")
    return None


def _actor() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}".encode("ascii", "replace").decode()
