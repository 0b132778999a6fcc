from pathlib import Path

import pytest

from config.tenant_checks import check_tenants
from config.yaml_lines import parse

HASH = f"hmac-sha256:{'0a' * 6}:{'1b' * 16}:{'2c' * 32}"
SAME_KEY = f"hmac-sha256:{'0a' * 6}:{'3d' * 16}:{'4e' * 32}"


def _check(text: str, folder: Path = Path()) -> list[str]:
    root, problems = parse(f"{text}\n".encode(), "f")
    assert problems == []
    assert root is not None
    return [str(problem) for problem in check_tenants(root, folder)]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "tenants: {a: {}, anonymous: {models: [m]}}",
        "{tenants: {a: {tier: gold}}, tiers: {gold: {}}}",
        "{tenants: {a: {certificates: ['CN=a']}}, api: {tls: {client_ca_file: x}}}",
        "{tenants: {a: {claims: {team: [b]}}}, auth: {jwt: {}}}",
        f"tenants: {{a: {{keys: [{{hash: '{HASH}'}}, {{}}], networks: [10.0.0.0/8]}}}}",
        "tenants: {a: {networks: [10.0.0.0/8]}, b: {networks: [10.0.0.0/16]}}",
        "tenants: {anonymous: {keys: []}}",
    ],
)
def test_tenants_that_make_sense(text):
    assert _check(text) == []


def test_a_tier_is_there():
    assert _check("tenants: {a: {tier: gold}}") == [
        "f:1: tenants.a.tier: there is no tier 'gold' - write it below `tiers`, or correct it"
    ]


def test_what_nobody_can_show_is_refused():
    assert _check("tenants: {a: {certificates: ['CN=a'], claims: {team: [b]}}}") == [
        "f:1: tenants.a.certificates: nobody can show any without api.tls.client_ca_file"
        " - write it, or remove certificates",
        "f:1: tenants.a.claims: nobody can show any without auth.jwt - write it, or remove claims",
    ]


def test_a_file_of_hashes_is_there(tmp_path):
    (tmp_path / "there").touch()
    assert _check("tenants: {a: {key_files: [there, gone]}}", tmp_path) == [
        f"f:1: tenants.a.key_files[1]: '{tmp_path}/gone' is not a file that can be read"
        " - create it or correct the name"
    ]


def test_the_anonymous_show_nothing():
    problems = _check(f"tenants: {{anonymous: {{keys: [{{hash: '{HASH}'}}], networks: ['::/0']}}}}")
    assert [problem.split(":")[2] for problem in problems] == [
        " tenants.anonymous.keys",
        " tenants.anonymous.networks",
    ]


def test_whoever_is_recognised_is_one_tenant():
    one = f"{{keys: [{{hash: '{HASH}'}}], certificates: ['CN=a,O=b'], networks: [10.0.0.0/8]}}"
    two = f"{{keys: [{{hash: '{SAME_KEY}'}}], certificates: ['O=b,CN=a'], networks: [10.0.0.0/8]}}"
    tls = "api: {tls: {client_ca_file: x}}"
    assert _check(f"{{tenants: {{a: {one}, b: {two}}}, {tls}}}") == [
        f"f:1: tenants.b.{where}[0]: this {what} is also in f:1 - remove one of them"
        for where, what in (
            ("keys", "key"),
            ("certificates", "certificate"),
            ("networks", "network"),
        )
    ]


def test_nothing_is_concluded_from_what_is_wrong_already():
    text = "tenants: {a: {key_files: [gone], certificates: [x], networks: [x]}}"
    root, _ = parse(f"{text}\n".encode(), "f")
    assert root is not None
    for key in ("key_files", "certificates", "networks"):
        for node in root.find(("tenants", "a", key, 0))[0][-1:]:
            node.bad = True
    assert [str(problem) for problem in check_tenants(root, Path())] == [
        "f:1: tenants.a.certificates: nobody can show any without api.tls.client_ca_file"
        " - write it, or remove certificates"
    ]
