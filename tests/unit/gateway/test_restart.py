"""What a reload leaves as it was until the gateway is started again."""

from pathlib import Path

from config.compare import differences
from config.loader import load_text
from config.models import Config
from gateway.wiring.restart import in_force

TLS = "tls: {cert_file: c.pem, key_file: k.pem"


def config(folder: Path, **sections: str) -> Config:
    text = "servers: [{name: a, grpc: 'a:1'}]\n"
    text += "".join(f"{name}: {{{section}}}\n" for name, section in sections.items())
    return load_text(text, str(folder / "f"))


def waiting(written: Config, running: Config) -> list[str]:
    return [found.key for found in differences(in_force(written, running), written)]


def test_addresses_and_the_state_file_wait(tmp_path: Path) -> None:
    running = config(tmp_path)
    written = config(
        tmp_path,
        api="host: 127.0.0.1, port: 1, server_id: new",
        ops="host: '::1', port: 2",
        steering="state_file: state",
        retries="max_attempts: 1",
    )
    assert waiting(written, running) == [
        "api.host", "api.port", "ops.host", "ops.port", "steering.state_file",
    ]  # fmt: skip
    new = in_force(written, running)
    assert (new.api.server_id, new.retries.max_attempts) == ("new", 1)
    assert (new.api.host, new.ops.host, new.steering) == ("0.0.0.0", "127.0.0.1", running.steering)
    assert new.origin is written.origin


def test_what_gateways_share_stays_where_it_is(tmp_path: Path) -> None:
    running = config(tmp_path, redis="url: 'redis://a'")
    written = config(tmp_path, sequences="max_open: 5, margin_s: 7")
    assert waiting(written, running) == ["sequences.max_open", "redis"]
    new = in_force(written, running)
    assert new.redis == running.redis
    assert (new.sequences.max_open, new.sequences.margin_s) == (100_000, 7)


def test_how_usage_is_kept_waits(tmp_path: Path) -> None:
    running = config(tmp_path)
    written = config(tmp_path, usage="enabled: false, retention_months: 2")
    assert waiting(written, running) == ["usage.enabled", "usage.retention_months"]
    assert in_force(written, running).usage == running.usage


def test_what_keeps_loads_waits_and_the_rest_of_model_control_does_not(tmp_path: Path) -> None:
    running = config(tmp_path)
    written = config(tmp_path, model_control="enabled: true, replay: true, state_file: loads")
    assert waiting(written, running) == ["model_control.replay", "model_control.state_file"]
    assert in_force(written, running).model_control.enabled


def test_a_key_may_be_added_and_exchanged_and_is_never_taken_away(tmp_path: Path) -> None:
    none, one, two = (config(tmp_path, ops=key) for key in ("", "key: {env: A}", "key: {env: B}"))
    assert waiting(one, none) == waiting(two, one) == []
    assert waiting(none, two) == ["ops.key"]
    assert in_force(none, two).ops.key == two.ops.key


def test_certificates_may_be_exchanged_but_not_what_is_asked_of_clients(tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem", "other.pem", "ca.pem"):
        (tmp_path / name).touch()
    plain, tls = config(tmp_path), config(tmp_path, api=TLS + "}")
    other = config(tmp_path, api=TLS.replace("c.pem", "other.pem") + "}")
    mutual = config(tmp_path, api=TLS + ", client_ca_file: ca.pem}")
    assert waiting(other, tls) == []
    assert in_force(other, tls).api.tls == other.api.tls
    for written, running in ((plain, tls), (tls, plain)):
        assert waiting(written, running) == ["api.tls"]
        assert in_force(written, running).api.tls == running.api.tls
    for written, running in ((tls, mutual), (mutual, tls)):
        assert waiting(written, running) == ["api.tls.client_ca_file"]
