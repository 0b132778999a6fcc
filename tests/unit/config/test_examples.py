"""Each example is a configuration that loads."""

import re
import shutil
from pathlib import Path

import pytest

from config import models
from config.loader import load, missing_secrets
from config.policies import Hedging

_EXAMPLES = Path(models.__file__).parent / "examples"
_NAMES = sorted(path.name for path in _EXAMPLES.iterdir())


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples with the certificates that they name, all of them empty."""
    folder = tmp_path / "examples"
    shutil.copytree(_EXAMPLES, folder)
    (folder / "certs").mkdir()
    for name in re.findall(r"certs/([\w.-]+)", (folder / "tls.yaml").read_text()):
        (folder / "certs" / name).touch()
    return folder


def test_these_are_all_the_examples():
    assert _NAMES == [
        "admission.yaml",
        "aliases.yaml",
        "config.d",
        "control.yaml",
        "discovery.yaml",
        "limits.yaml",
        "minimal.yaml",
        "models.yaml",
        "priorities.yaml",
        "rented.yaml",
        "routing.yaml",
        "shared.yaml",
        "tenants.yaml",
        "tls.yaml",
    ]


@pytest.mark.parametrize("name", _NAMES)
def test_an_example_loads(examples, name):
    config = load(examples / name)
    assert config.servers or config.discovery


def test_the_rented_servers_share_one_key_from_the_environment(examples):
    config = load(examples / "rented.yaml")
    assert len(missing_secrets(config, {})) == 2
    assert missing_secrets(config, {"TRITON_KEY": "x"}) == []
    assert config.servers[2].tls is not None


def test_the_shared_redis_has_its_password_from_the_environment(examples):
    config = load(examples / "shared.yaml")
    assert config.redis is not None
    assert config.redis.namespace == "fleet-a"
    assert len(missing_secrets(config, {})) == 1


def test_the_example_of_limits_has_every_kind(examples):
    limits = load(examples / "limits.yaml").limits
    assert {limit.of for limit in limits.values()} == {"requests", "rows", "input_bytes"}
    assert {limit.per for limit in limits.values()} == {"tenant", "tenant_model", "global"}
    assert limits["llm-at-a-time"].concurrent == 8
    assert limits["batch-jobs"].mode == "observe"
    assert limits["bytes-of-all"].on_store_failure == "closed"


def test_the_example_of_priorities_has_classes_of_its_own(examples):
    config = load(examples / "priorities.yaml")
    assert config.priority is not None
    assert [cls.name for cls in config.priority.classes] == ["interactive", "normal", "batch"]
    assert config.tiers["gold"].max_priority_class == "interactive"
    assert config.tenants["nightly"].priority_class == "batch"
    assert config.models["llm-chat"].priority_levels == {"interactive": 1, "normal": 2, "batch": 2}


def test_the_folder_is_joined(examples):
    config = load(examples / "config.d")
    assert [server.name for server in config.servers] == ["rack-a", "rack-b"]
    assert (config.upstream.channels, config.upstream.connect_timeout_s) == (8, 1.0)


def test_the_example_models_are_treated_as_said(examples):
    models_ = load(examples / "models.yaml").models
    assert models_["summarise"].default_version == 3
    assert models_["send-invoice"].idempotent is False
    assert models_["embed.v2"].idempotent is True
    assert models_["resnet50"].idempotent == "auto"


def test_the_example_of_control_restricts_what_it_allows(examples):
    config = load(examples / "control.yaml")
    assert config.model_control.enabled
    assert "model-repository" in config.api.restricted[0].apis
    assert config.models["llm-chat"].placement == ("large-*",)


def test_the_example_of_routing_uses_every_kind_of_rule(examples):
    config = load(examples / "routing.yaml")
    assert [server.pool for server in config.servers] == [None, None, None, "large", "large"]
    assert config.servers[2].serve == ("resnet*", "embed.v2")
    assert config.balancing.zone == "oslo"
    assert config.breaker.open_max_s == 300
    assert config.models["resnet50"].capacity == {"lyon-1": 0.3}
    assert config.models["resnet50"].hedging == Hedging(after_s=0.15)
    assert config.models["llm-chat"].pool == "large"
    assert config.models["embed.v2"].policy == "round_robin"


def test_the_example_of_tenants_has_a_caller_of_every_kind(examples):
    config = load(examples / "tenants.yaml")
    assert config.auth.mode == "enforce"
    assert set(config.tiers) == {"gold", "bronze"}
    assert len(config.tenants["vision-team"].keys) == 2
    assert config.tenants["batch"].networks == ("10.20.0.0/16",)
    assert config.tenants["operators"].scopes == ("admin",)
