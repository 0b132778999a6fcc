import pytest

from config.admission import Admission
from config.loader import ConfigError, load_text

_SERVERS = "servers: [{name: a, grpc: 'h:1'}]\n"


def test_the_documented_defaults():
    assert Admission().model_dump() == {
        "mode": "observe",
        "max_queued": 256,
        "max_queued_per_tenant": None,
        "max_queued_bytes": 268_435_456,
        "max_wait_s": 10.0,
    }


@pytest.mark.parametrize("mode", ["off", "observe", "enforce"])
def test_every_mode_can_be_written(mode: str):
    assert load_text(f"{_SERVERS}admission: {{mode: {mode}}}", "f.yaml").admission.mode == mode


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            "admission: {max_queued: 10, max_queued_per_tenant: 11}",
            "f.yaml:2: admission.max_queued_per_tenant: admission.max_queued_per_tenant (11) is"
            " above admission.max_queued (10) - lower it or raise admission.max_queued",
        ),
        (
            "admission: {max_queued_per_tenant: 300}",
            "admission.max_queued_per_tenant (300) is above admission.max_queued (256)",
        ),
        (
            "admission: {mode: off}\nmodels: {m: {concurrency: 3}}",
            "f.yaml:3: models.m.concurrency: nothing is limited while admission.mode is off",
        ),
        ("admission: {mode: on}", "f.yaml:2: admission.mode"),
        ("admission: {max_queued: 0}", "admission.max_queued"),
        ("admission: {max_queued_bytes: 0}", "admission.max_queued_bytes"),
        ("admission: {max_wait_s: 0}", "admission.max_wait_s"),
        ("admission: {queue: 1}", "admission.queue"),
        ("models: {m: {concurrency: 0}}", "models.m.concurrency"),
    ],
)
def test_what_is_wrong_is_refused(sections: str, problem: str):
    with pytest.raises(ConfigError) as caught:
        load_text(f"{_SERVERS}{sections}\n", "f.yaml")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "sections",
    [
        "admission: {max_queued: 10}",
        "admission: {max_queued: 10, max_queued_per_tenant: 10}",
        "models: {m: {concurrency: 3}}",
    ],
)
def test_what_is_right_is_not(sections: str):
    load_text(f"{_SERVERS}{sections}\n", "f.yaml")
