"""`triton-gateway keys`: a key is shown once, and what is kept of it opens for it."""

import re

from typer.testing import CliRunner

from gateway.cli import app
from gateway.identity.keys import KeyRing, parse_hash

HASH = r"hmac-sha256:[0-9a-f:]+"


def keys(*arguments: str, typed: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["keys", *arguments], input=typed)
    return done.exit_code, done.stdout, done.stderr


def test_a_new_key_comes_with_its_hash_and_can_be_hashed_again() -> None:
    code, out, _ = keys("new")
    assert code == 0
    (key,) = re.findall(r"tgk_\S+", out)
    (first,) = re.findall(f"- hash: ({HASH})", out)
    code, again, _ = keys("hash", typed=f"{key}\n")
    assert (code, bool(re.fullmatch(f"{HASH}\n", again))) == (0, True)
    for hashed in (first, again.strip()):
        assert KeyRing([parse_hash(hashed, tenant="a")]).tenant_of(key, 0.0) == "a"


def test_two_new_keys_have_nothing_in_common() -> None:
    assert keys("new")[1] != keys("new")[1]


def test_what_is_no_key_is_refused_and_not_repeated() -> None:
    code, out, err = keys("hash", typed="password1\n")
    assert (code, out) == (2, "")
    assert "password1" not in err
    assert "keys new" in err
