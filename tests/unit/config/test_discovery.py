"""Which sources of servers may be written, and how a server that was found is described."""

from pathlib import Path

import pytest

from config.discovery import server_name, split_nameserver
from config.loader import ConfigError, load_text, missing_secrets

_DNS = "dns: {names: [triton.example]}"


def _load(*sources: str, folder: str = "/nowhere"):
    text = "discovery:\n" + "".join(f"  - {{{source}}}\n" for source in sources)
    return load_text(text, f"{folder}/f").discovery


def _problems(*sources: str, folder: str = "/nowhere") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _load(*sources, folder=folder)
    return [str(problem).removeprefix(f"{folder}/f:") for problem in caught.value.problems]


def test_sources_may_stand_without_servers_and_beside_them():
    assert len(_load(f"name: a, {_DNS}", "name: b, file: {path: x}")) == 2
    config = load_text(f"servers: []\ndiscovery: [{{name: a, {_DNS}}}]", "f")
    assert (config.servers, len(config.discovery)) == ((), 1)


def test_neither_is_not_enough():
    for text in ("discovery: []", "servers: []\ndiscovery: []"):
        with pytest.raises(ConfigError, match="servers: "):
            load_text(text, "f")


def test_the_defaults():
    [source] = _load(f"name: a, {_DNS}")
    assert source.dns is not None
    assert (source.dns.record, source.dns.min_interval_s, source.dns.max_interval_s) == ("a", 5, 60)
    assert (source.removal_grace_s, source.max_removed_share) == (30, 0.5)
    [other] = _load("name: a, dns: {names: [x], nameservers: [10.0.0.2]}")
    assert other.dns is not None
    assert (source.dns.nameservers, other.dns.nameservers) == ((), ("10.0.0.2",))
    assert source.servers.grpc_port == 8001


@pytest.mark.parametrize("kinds", ["", f"{_DNS}, file: {{path: x}}"])
def test_a_source_has_exactly_one_kind(kinds):
    have = "none of them" if not kinds else "dns and file"
    assert _problems(f"name: a, {kinds}") == [
        f"2: discovery[0]: a source has exactly one of dns, file and kubernetes - here is {have}"
    ]


def test_a_source_that_is_wrong_otherwise_is_not_told_twice():
    [problem] = _problems("name: a, dms: {}")
    assert problem.startswith("2: discovery[0].dms: unknown key - did you mean 'dns'?")


@pytest.mark.parametrize("name", ["A", "a" * 17, "-a", "a/b", ""])
def test_a_source_has_a_short_plain_name(name):
    [problem] = _problems(f"name: '{name}', {_DNS}")
    assert "use at most 16 of a-z 0-9 . _ -" in problem


def test_each_source_has_its_own_name():
    assert _problems(f"name: a, {_DNS}", f"name: a, {_DNS}") == [
        "3: discovery[1].name: 'a' is also the name of the source in /nowhere/f:2 - each source"
        " needs its own"
    ]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("dns: {names: []}", "dns.names: the list is empty"),
        ("dns: {names: ['a b']}", "dns.names[0]: 'a b' - write an IP address or a DNS name"),
        ("dns: {names: [a], record: mx}", "dns.record: 'mx' (text) is no choice"),
        ("dns: {names: [a], nameservers: [x]}", "dns.nameservers[0]: 'x' - write an IP address"),
        (
            "dns: {names: [a], min_interval_s: 90}",
            "dns.min_interval_s: dns.min_interval_s (90) is above dns.max_interval_s (60)",
        ),
        ("kubernetes: {service: A, namespace: b}", "kubernetes.service: 'A' - use at most 63"),
        (
            "dns: {names: [a], nameservers: [7]}",
            "dns.nameservers[0]: 7 (a number) where text is due",
        ),
        (
            "kubernetes: {service: a, namespace: b, context: c}",
            "kubernetes.context: kubeconfig is missing",
        ),
        (
            "kubernetes: {service: a, namespace: b, kubeconfig: c}",
            "kubernetes.kubeconfig: '/nowhere/c' is not a file that can be read",
        ),
        (_DNS + ", servers: {http_port: 8001}", "servers.http_port: 8001 is the gRPC port too"),
        (
            _DNS + ", servers: {grpc_port: 9, metrics_port: 9}",
            "servers.metrics_port: 9 is the gRPC port too",
        ),
        (_DNS + ", servers: {name: x}", "servers.name: unknown key"),
        (_DNS + ", servers: {tls: {ca_file: x}}", "servers.tls.ca_file: '/nowhere/x' is not a"),
        (_DNS + ", max_removed_share: 2", "max_removed_share: 2 (a number) is too large"),
    ],
)
def test_what_is_wrong_in_a_source(source, problem):
    assert any(
        said.startswith(f"2: discovery[0].{problem}") for said in _problems(f"name: a, {source}")
    )


def test_a_kubeconfig_that_is_there(tmp_path: Path):
    (tmp_path / "kube").touch()
    kubernetes = "kubernetes: {service: a, namespace: b, kubeconfig: kube, context: c}"
    [source] = _load(f"name: a, {kubernetes}", folder=str(tmp_path))
    assert source.kubernetes is not None
    assert source.kubernetes.kubeconfig == tmp_path / "kube"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.2", ("10.0.0.2", 53)),
        ("10.0.0.2:54", ("10.0.0.2", 54)),
        ("fd00::2", ("fd00::2", 53)),
        ("[fd00::2]:54", ("fd00::2", 54)),
    ],
)
def test_nameservers(text, found):
    assert split_nameserver(text) == found


@pytest.mark.parametrize(
    "text", ["", "a", "a:53", "10.0.0.2:", "10.0.0.2:0", "10.0.0.2:65536", "[]:1"]
)
def test_what_is_no_nameserver(text):
    with pytest.raises(ValueError, match="write an IP address"):
        split_nameserver(text)


def test_a_found_server_has_what_the_source_says_of_all():
    said = "grpc_port: 9001, http_port: 9000, metrics_port: 9002, pool: large, serve: ['a*']"
    key = "metadata: {key: {env: KEY}}"
    [source] = _load(f"name: a, {_DNS}, servers: {{{said}, {key}}}")
    server = source.server("10.0.0.1")
    assert (server.name, server.grpc) == ("a-10.0.0.1-9001", "10.0.0.1:9001")
    assert (server.http, server.metrics) == ("10.0.0.1:9000", "10.0.0.1:9002")
    assert (server.pool, server.serve, server.zone) == ("large", ("a*",), None)
    assert source.server("h", 7, "z").grpc == "h:7"
    assert source.server("h", 7, "z").zone == "z"


def test_the_secrets_of_a_source_have_to_be_there():
    servers = "servers: {metadata: {key: {env: KEY}}}"
    config = load_text(f"discovery: [{{name: a, {_DNS}, {servers}}}]", "f")
    [problem] = missing_secrets(config, {})
    assert str(problem).startswith("f:1: discovery[0].servers.metadata.key")
    assert missing_secrets(config, {"KEY": "x"}) == []


def test_the_zone_of_the_source_comes_first():
    [source] = _load(f"name: a, {_DNS}, servers: {{zone: mine}}")
    assert source.server("h", zone="theirs").zone == "mine"


def test_an_ipv6_address_stands_in_brackets():
    [source] = _load(f"name: a, {_DNS}, servers: {{http_port: 8000}}")
    server = source.server("fd00::1")
    assert (server.grpc, server.http) == ("[fd00::1]:8001", "[fd00::1]:8000")


def test_names_are_stable_plain_and_different():
    assert server_name("a", "FD00::1", 1) == "a-fd00__1-1"
    assert server_name("a", "fd00::1:2", 1) != server_name("a", "fd00:1::2", 1)
    assert server_name("a", "my-host.example", 8001) == "a-my-host.example-8001"
    long = [server_name("a" * 16, "x" * 60 + tail, 65535) for tail in ("a", "b")]
    assert len(set(long)) == 2
    assert {len(name) for name in long} == {63}
    address = "2001:db8:1111:2222:3333:4444:5555:6666"
    assert server_name("a" * 16, address, 65535).endswith(f"{address.replace(':', '_')}-65535")


def test_what_is_said_of_models_is_not_checked_against_servers_that_are_yet_to_be_found():
    models = "models: {m: {pool: large, capacity: {a-10.0.0.1-8001: 2}}}"
    assert load_text(f"discovery: [{{name: a, {_DNS}}}]\n{models}", "f").models
