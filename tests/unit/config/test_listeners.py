import pytest
from pydantic import ValidationError

from config.listeners import Api, ListenerTls, Ops


def test_the_documented_defaults():
    assert Api().model_dump() == {
        "host": "0.0.0.0",
        "port": 8080,
        "server_id": "triton",
        "max_body_bytes": 256 * 2**20,
        "max_unpacked_bytes": 256 * 2**20,
        "max_header_bytes": 32 * 2**10,
        "header_timeout_s": 30.0,
        "max_inbound_bytes": 2 * 2**30,
        "forward_headers": ("traceparent", "tracestate"),
        "older_limit_headers": False,
        "keepalive_timeout_s": 75.0,
        "body_timeout_s": 60.0,
        "tls": None,
        "restricted": (),
    }
    assert Ops().model_dump() == {
        "host": "127.0.0.1",
        "port": 8081,
        "key": None,
        "allow_unauthenticated": False,
        "scrape_timeout_s": 5.0,
        "max_metrics_page_bytes": 8_388_608,
        "tls": None,
    }


@pytest.mark.parametrize(
    ("section", "key", "bad", "good"),
    [
        (Api, "port", [-1, 65_536, "80", 80.0, True], [0, 65_535]),
        (Api, "server_id", ["", 1], ["my-gateway"]),
        (Api, "max_body_bytes", [0, 2**31], [1]),
        (Api, "max_header_bytes", [1023, 2**20 + 1], [1024]),
        (
            Api,
            "forward_headers",
            [["grpc-timeout"], ["X-Blob-Bin"], ["Host"], ["Authorization"], ["a b"], "x"],
            [[], ["X-Request-Id", "traceparent"]],
        ),
        (Api, "tls", [{}, {"cert_file": "a"}], [{"cert_file": "a", "key_file": "b"}]),
        (Ops, "key", ["hunter2"], [{"env": "KEY"}, {"file": "key"}]),
        (Ops, "allow_unauthenticated", [1, "true"], [True]),
    ],
)
def test_what_a_key_takes(section, key, bad, good):
    for value in good:
        section.model_validate({key: value})
    for value in bad:
        with pytest.raises(ValidationError):
            section.model_validate({key: value})


def test_a_listener_needs_both_certificate_and_key():
    assert set(ListenerTls.model_json_schema()["required"]) == {"cert_file", "key_file"}
