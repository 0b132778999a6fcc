"""The state file: written whole, and refused when it is not exactly what was written."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gateway.stores.state_file import LOADS, STEERING, USAGE, DamagedState, StateFile

BLOCK = {"model": "m", "version": 2, "server": "a"}
ENTRY = {"at": "2026-01-01T00:00:00+00:00", "command": "cordon", "by": "ann", "server": "a"}
SWITCH = {
    "feature": "limits",
    "off": True,
    "by": "ann",
    "reason": "",
    "since_s": 1764541870.5,
    "until_s": 1764543670,
}
STATE: dict[str, Any] = {
    "cordoned": ["a"],
    "blocks": [BLOCK],
    "disabled": [SWITCH],
    "audit": [ENTRY],
}
FIX = "repair it, or remove it to start with every server and every model in use"
KEY = "steering.state_file"
LOAD = {"model": "m", "server": "a", "config": None, "with_files": False}


def written(path: Path, **changes: Any) -> StateFile:
    """A file as the gateway writes it, but for the changes; one to None is left out."""
    state = {"schema_version": 1, **STATE, **changes}
    path.write_text(json.dumps({k: v for k, v in state.items() if v is not None}))
    return StateFile(path, STEERING)


def refusal(file: StateFile) -> str:
    with pytest.raises(DamagedState) as caught:
        file.read()
    return str(caught.value)


def test_without_a_path_nothing_is_kept() -> None:
    file = StateFile(None, STEERING)
    file.write(STATE)
    assert (file.keeps, file.read()) == (False, {})


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", STEERING)
    assert (file.keeps, file.read()) == (True, {})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    StateFile(tmp_path / "state.json", STEERING).write(STATE)
    assert StateFile(tmp_path / "state.json", STEERING).read() == STATE


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", STEERING)
    file.write(STATE)
    full = mock.patch("os.fsync", side_effect=OSError("disk full"))
    with full, pytest.raises(OSError, match="disk full"):
        file.write({**STATE, "cordoned": []})
    assert file.read() == STATE


def test_what_a_kill_left_of_a_write_is_overwritten(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", STEERING)
    for _ in range(2):
        (tmp_path / ".state.json.new").write_bytes(b'{"half')
        file.write(STATE)
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StateFile(tmp_path / "gone" / "state.json", STEERING).write(STATE)


def test_a_file_edited_by_hand_is_read_if_it_is_sound(tmp_path: Path) -> None:
    block = {"server": None, "version": None, "model": "other"}
    file = written(tmp_path / "s", blocks=[block], cordoned=[], audit=[])
    assert file.read() == {**STATE, "cordoned": [], "blocks": [block], "audit": []}


def test_a_file_from_before_features_could_be_disabled_is_read(tmp_path: Path) -> None:
    assert written(tmp_path / "s", disabled=None).read() == {**STATE, "disabled": []}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema_version": 2}, "schema_version: not 1, the one this gateway writes"),
        ({"schema_version": None}, "schema_version: not 1, the one this gateway writes"),
        ({"cordoned": None}, "cordoned: missing"),
        ({"audit": None}, "audit: missing"),
        ({"cordonned": []}, "cordonned: unknown"),
        ({"cordoned": "a"}, "cordoned: not a list"),
        ({"cordoned": {"a": 1}}, "cordoned: not a list"),
        ({"cordoned": ["a", 5]}, "cordoned[1]: not a name"),
        ({"cordoned": [""]}, "cordoned[0]: not a name"),
        ({"cordoned": [["a"]]}, "cordoned[0]: not a name"),
        ({"blocks": ["m"]}, "blocks[0]: not a JSON object"),
        ({"blocks": [{"model": "m"}]}, "blocks[0].server: missing"),
        ({"blocks": [{**BLOCK, "why": "x"}]}, "blocks[0].why: unknown"),
        ({"blocks": [{**BLOCK, "model": None}]}, "blocks[0].model: not a name"),
        ({"blocks": [BLOCK, {**BLOCK, "server": 1}]}, "blocks[1].server: not a name"),
        *(
            (
                {"blocks": [{**BLOCK, "version": version}]},
                "blocks[0].version: neither a version number nor null",
            )
            for version in ("2", 0, -1, 2.0, True, 2**63)
        ),
        ({"disabled": {}}, "disabled: not a list"),
        ({"disabled": ["limits"]}, "disabled[0]: not a JSON object"),
        ({"disabled": [{"feature": "limits"}]}, "disabled[0].off: missing"),
        ({"disabled": [{**SWITCH, "off": 1}]}, "disabled[0].off: not a bool"),
        ({"disabled": [{**SWITCH, "until_s": "x"}]}, "disabled[0].until_s: not a float or int"),
        (
            {"disabled": [{**SWITCH, "feature": "all"}]},
            "disabled[0].feature: nothing that can be switched off",
        ),
        ({"audit": [7]}, "audit[0]: not a JSON object"),
        ({"audit": [{**ENTRY, "by": None}]}, "audit[0].by: not text"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = tmp_path / "state.json"
    assert refusal(written(path, **changes)) == f"{KEY}: {path}: {problem} - {FIX}"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b'{"schema_version": 1} x', b"NaN"])
def test_what_is_no_json_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text)
    said = refusal(StateFile(path, STEERING))
    assert said.startswith(f"{KEY}: {path}: not JSON: ")
    assert said.endswith(FIX)
    assert "\n" not in said


@pytest.mark.parametrize("text", ["[]", "null", '"a"', "1"])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    assert refusal(StateFile(path, STEERING)) == f"{KEY}: {path}: not a JSON object - {FIX}"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    said = refusal(StateFile(tmp_path, STEERING))
    assert said == f"{KEY}: {tmp_path}: cannot be read: Is a directory - make it readable"


def test_loads_have_a_file_of_their_own(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "loads.json", LOADS)
    state = {"loads": [LOAD, {**LOAD, "server": "b", "config": "{}", "with_files": True}]}
    file.write(state)
    assert file.read() == state
    with pytest.raises(DamagedState, match=r"^steering\.state_file: .*missing"):
        StateFile(tmp_path / "loads.json", STEERING).read()


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        ("m", "loads[0]: not a JSON object"),
        ({"model": "m"}, "loads[0].config: missing"),
        ({**LOAD, "files": {}}, "loads[0].files: unknown"),
        ({**LOAD, "model": ""}, "loads[0].model: not a name"),
        ({**LOAD, "server": 5}, "loads[0].server: not a name"),
        ({**LOAD, "config": {}}, "loads[0].config: neither text nor null"),
        ({**LOAD, "with_files": 0}, "loads[0].with_files: neither true nor false"),
    ],
)
def test_what_is_wrong_with_a_load_is_named(tmp_path: Path, load: Any, problem: str) -> None:
    path = tmp_path / "loads.json"
    path.write_text(json.dumps({"schema_version": 1, "loads": [load]}))
    fix = "repair it, or remove it to start with nothing to be loaded again"
    assert refusal(StateFile(path, LOADS)) == f"model_control.state_file: {path}: {problem} - {fix}"


USED = {
    "month": "2026-11", "tenant": "a", "model": "m", "requests": 1, "errors": 0,
    "rows": 2, "input_bytes": 3, "output_bytes": 4, "compute_us": 5,
}  # fmt: skip


def test_usage_has_a_file_of_its_own(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "usage.json", USAGE)
    state = {"usage": [USED, {**USED, "month": "2026-12", "compute_us": 2**62}]}
    file.write(state)
    assert file.read() == state


@pytest.mark.parametrize(
    ("used", "problem"),
    [
        (5, "usage[0]: not a JSON object"),
        ({**USED, "dollars": 5}, "usage[0].dollars: unknown"),
        ({name: value for name, value in USED.items() if name != "rows"}, "usage[0].rows: missing"),
        ({**USED, "month": 202611}, "usage[0].month: not a name"),
        ({**USED, "tenant": ""}, "usage[0].tenant: not a name"),
        ({**USED, "rows": -1}, "usage[0].rows: not a whole number"),
        ({**USED, "rows": 1.0}, "usage[0].rows: not a whole number"),
        ({**USED, "rows": True}, "usage[0].rows: not a whole number"),
    ],
)
def test_what_is_wrong_with_usage_is_named(tmp_path: Path, used: Any, problem: str) -> None:
    path = tmp_path / "usage.json"
    path.write_text(json.dumps({"schema_version": 1, "usage": [used]}))
    fix = "repair it, or remove it to start with nothing used yet"
    assert refusal(StateFile(path, USAGE)) == f"usage.state_file: {path}: {problem} - {fix}"
