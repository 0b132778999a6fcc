import pytest
from pydantic import ValidationError

from config.loader import ConfigError, load_text
from config.stores import Redis, RedisAddress, RedisTls, Sequences, split_redis_url

_URL = "redis://a"
_SERVERS = "servers: [{name: a, grpc: 'a:1'}]\n"


def test_the_documented_defaults():
    assert Redis(url=_URL).model_dump() == {
        "url": _URL,
        "username": None,
        "password": None,
        "sentinel_password": None,
        "tls": None,
        "namespace": "tg",
        "timeout_s": 0.025,
        "connect_timeout_s": 0.5,
        "max_connections": 32,
    }
    assert RedisTls().model_dump() == dict.fromkeys(("ca_file", "cert_file", "key_file"))
    assert Sequences().model_dump() == {"margin_s": 30.0, "idle_s": 60.0, "max_open": 100_000}
    assert load_text(_SERVERS, "x.yaml").redis is None


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://a", RedisAddress("single", False, (("a", 6379),))),
        ("redis://a:7/", RedisAddress("single", False, (("a", 7),))),
        ("rediss://a.example:7/3", RedisAddress("single", True, (("a.example", 7),), db=3)),
        ("redis://[::1]", RedisAddress("single", False, (("::1", 6379),))),
        (
            "redis+sentinel://a,[::1]:7/main",
            RedisAddress("sentinel", False, (("a", 26379), ("::1", 7)), "main"),
        ),
        (
            "rediss+sentinel://a:1/main/2",
            RedisAddress("sentinel", True, (("a", 1),), "main", 2),
        ),
        ("redis+cluster://a,b:7", RedisAddress("cluster", False, (("a", 6379), ("b", 7)))),
        ("rediss+cluster://a/", RedisAddress("cluster", True, (("a", 6379),))),
    ],
)
def test_a_url_is_taken_apart(url, address):
    assert split_redis_url(url) == address
    assert Redis(url=url).url == url


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "no Redis URL"),
        ("a:6379", "write redis://HOST"),
        ("http://a", "no Redis URL"),
        ("redis+other://a", "no Redis URL"),
        ("redis://a?db=1", "no Redis URL"),
        ("redis://:secret@a", "write `username` and `password` instead"),
        ("redis://a,b", "several hosts"),
        ("redis://a/x", "database as a number"),
        ("redis://a/-1", "database as a number"),
        ("redis://", "host:port"),
        ("redis://a:x", "port from 1"),
        ("redis+sentinel://a", "names no service"),
        ("redis+sentinel://a/", "names no service"),
        ("redis+sentinel://a/main/x", "database as a number"),
        ("redis+cluster://a/1", "a cluster has no databases"),
        ("redis+cluster://a,", "host:port"),
    ],
)
def test_a_url_of_no_use_is_refused(url, advice):
    with pytest.raises(ValidationError) as caught:
        Redis(url=url)
    assert advice in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "bad", "good"),
    [
        (Redis, "namespace", ["", "a b", "{a}", "a" * 65, 7], ["tg", "a-B_1.c"]),
        (Redis, "timeout_s", [0, -1, "1"], [0.001, 1]),
        (Redis, "connect_timeout_s", [0], [0.05]),
        (Redis, "max_connections", [0, 10_001, 1.5], [1, 10_000]),
        (Redis, "username", ["", 7], ["gateway"]),
        (Redis, "password", ["secret", {}], [{"env": "REDIS_PASSWORD"}]),
        (Sequences, "margin_s", [-1, "30"], [0, 30]),
        (Sequences, "idle_s", [0], [0.1]),
        (Sequences, "max_open", [0, 1.5], [1]),
    ],
)
def test_what_a_key_takes(section, key, bad, good):
    base = {"url": _URL} if section is Redis else {}
    for value in good:
        section.model_validate({**base, key: value})
    for value in bad:
        with pytest.raises(ValidationError):
            section.model_validate({**base, key: value})


@pytest.mark.parametrize(
    ("redis", "problem"),
    [
        ("{url: 'redis://a', tls: {}}", "redis.tls: is used with a rediss:// URL only"),
        (
            "{url: 'rediss://a', sentinel_password: {env: X}}",
            "redis.sentinel_password: is used with Sentinels only",
        ),
        ("{url: 'rediss://a', tls: {cert_file: x.yaml}}", "redis.tls.cert_file: key_file is"),
        ("{url: 'rediss://a', tls: {ca_file: none.pem}}", "redis.tls.ca_file: "),
        ("{}", "redis.url: missing"),
        ("{url: nonsense, tls: {}}", "redis.url: 'nonsense' is no Redis URL"),
    ],
)
def test_the_rules_between_its_keys(tmp_path, redis, problem):
    with pytest.raises(ConfigError) as caught:
        load_text(f"{_SERVERS}redis: {redis}\n", str(tmp_path / "x.yaml"))
    assert problem in str(caught.value)


def test_a_whole_section():
    text = "{url: 'rediss+sentinel://a/main', tls: {}, sentinel_password: {env: X}}"
    assert load_text(f"{_SERVERS}redis: {text}\n", "x.yaml").redis.tls == RedisTls()
