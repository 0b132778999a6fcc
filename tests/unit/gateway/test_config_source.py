"""The files a gateway was started from: which of them it looks after."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.tree import ConfigError
from gateway.identity.keys import hash_key, new_key
from gateway.wiring import ConfigSource

SERVER = {"name": "a", "grpc": "127.0.0.1:8001"}


def write(folder: Path, name: str, text: str) -> None:
    """Replace a file, so that it is another one whatever the clock says."""
    new = folder / f".{name}.new"
    new.write_text(text)
    new.replace(folder / name)


def source_of(folder: Path, **sections: Any) -> ConfigSource:
    write(folder, "gateway.yaml", yaml.safe_dump({"servers": [SERVER], **sections}))
    return ConfigSource(folder / "gateway.yaml", os.environ)


def new_hash() -> str:
    return hash_key(new_key(os.urandom), os.urandom)


def changed(source: ConfigSource) -> bool:
    """Look twice: a change has to stand still."""
    source.has_changed()
    return source.has_changed()


@pytest.fixture
def source(tmp_path: Path) -> ConfigSource:
    write(tmp_path, "ops.key", "a-secret-of-operators")
    write(tmp_path, "acme.keys", new_hash())
    found = source_of(
        tmp_path,
        ops={"key": {"file": "ops.key"}},
        auth={"mode": "observe"},
        tenants={"acme": {"key_files": ["acme.keys"]}},
        steering={"state_file": "state.json"},
    )
    found.read()
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gateway.yaml", yaml.safe_dump({"servers": [SERVER]})),
        ("ops.key", "another-secret-of-operators"),
        ("acme.keys", f"{new_hash()} 2030-01-31\n"),
    ],
)
def test_a_change_of_a_file_is_seen_once_it_stands_still(
    source: ConfigSource, tmp_path: Path, name: str, text: str
) -> None:
    assert not changed(source)
    write(tmp_path, name, text)
    assert not source.has_changed()
    assert source.has_changed()
    source.read()
    assert not changed(source)


def test_what_the_gateway_writes_itself_is_no_change(source: ConfigSource, tmp_path: Path) -> None:
    write(tmp_path, "state.json", "{}")
    assert not changed(source)


def test_files_are_looked_after_while_the_configuration_is_refused(
    source: ConfigSource, tmp_path: Path
) -> None:
    (tmp_path / "acme.keys").unlink()
    assert changed(source)
    with pytest.raises(ConfigError):
        source.read()
    assert not changed(source)
    write(tmp_path, "acme.keys", new_hash())
    assert changed(source)
    source.read()


def test_files_that_are_named_no_more_do_not_count(source: ConfigSource, tmp_path: Path) -> None:
    write(tmp_path, "gateway.yaml", yaml.safe_dump({"servers": [SERVER]}))
    source.read()
    write(tmp_path, "acme.keys", "")
    assert not changed(source)
