"""What operators decided, kept in JSON files over a restart.

A file is replaced as a whole, so a crash leaves the old one or the new one. What is read is checked
entry by entry, since people edit such files. One file has one reader and writer,
`gateway.steering`, `gateway.replay` or `gateway.stores.usage`, through `gateway.ports.StateStore`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.steering import MAX_VERSION
from gateway.switches import Switch
from routing.usage import UNITS

SCHEMA_VERSION = 1

_Check = Callable[[object, str], None]


class DamagedState(ValueError):
    """The file cannot be used; the message names it and says why and what to do."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What one kind of file holds: lists of entries, each checked.

    `key` of the configuration names the file; `without` says what starting without it means. Lists
    that are `younger` than the file's form need not be there.
    """

    key: str
    without: str
    entries: Mapping[str, _Check]
    younger: frozenset[str] = frozenset()


class StateFile:
    """One file. Without a path nothing is kept."""

    def __init__(self, path: Path | None, contents: Contents) -> None:
        self._path = path
        self._contents = contents

    @property
    def keeps(self) -> bool:
        """Whether anything outlasts a restart."""
        return self._path is not None

    def read(self) -> Mapping[str, Any]:
        """Return what was kept, by the names of `Contents.entries`; empty if nothing was yet.

        Raises DamagedState for a file that is not exactly one of ours.
        """
        if self._path is None:
            return {}
        try:
            state = orjson.loads(self._path.read_bytes())
            _check_state(state, self._contents)
        except FileNotFoundError:
            return {}
        except OSError as error:
            why = f"cannot be read: {error.strerror or error} - make it readable"
            raise self._damaged(why) from None
        except orjson.JSONDecodeError as error:
            raise self._damaged(f"not JSON: {error} - {self._fix}") from None
        except ValueError as error:
            raise self._damaged(f"{error} - {self._fix}") from None
        return {name: state.get(name, []) for name in self._contents.entries}

    def write(self, state: Mapping[str, Any]) -> None:
        """Keep `state` instead of what was kept. Blocks until it is on disk. Raises OSError."""
        if self._path is None:
            return
        text = orjson.dumps({"schema_version": SCHEMA_VERSION, **state}, option=orjson.OPT_INDENT_2)
        # One name for all writes: what a kill leaves of one is overwritten by the next.
        new = self._path.with_name(f".{self._path.name}.new")
        with new.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        _sync_folder(self._path.parent)

    @property
    def _fix(self) -> str:
        return f"repair it, or remove it to start {self._contents.without}"

    def _damaged(self, why: str) -> DamagedState:
        return DamagedState(f"{self._contents.key}: {self._path}: {why}")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_state(state: object, contents: Contents) -> None:
    if not isinstance(state, dict):
        raise ValueError("not a JSON object")
    if state.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version: not {SCHEMA_VERSION}, the one this gateway writes")
    entries = contents.entries
    _check_keys({**dict.fromkeys(contents.younger), **state}, {"schema_version", *entries}, "")
    for name, check in entries.items():
        if name not in state:
            continue
        if not isinstance(state[name], list):
            raise ValueError(f"{name}: not a list")
        for position, entry in enumerate(state[name]):
            check(entry, f"{name}[{position}]")


def _check_keys(entry: Mapping[str, object], wanted: set[str], where: str) -> None:
    if missing := sorted(wanted - entry.keys()):
        raise ValueError(f"{where}{missing[0]}: missing")
    if unknown := sorted(entry.keys() - wanted):
        raise ValueError(f"{where}{unknown[0]}: unknown")


def _check_name(value: object, where: str) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: not a name")


def _check_block(entry: object, where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: not a JSON object")
    _check_keys(entry, {"model", "version", "server"}, f"{where}.")
    _check_name(entry["model"], f"{where}.model")
    version, server = entry["version"], entry["server"]
    if version is not None and (type(version) is not int or not 1 <= version <= MAX_VERSION):
        raise ValueError(f"{where}.version: neither a version number nor null")
    if server is not None:
        _check_name(server, f"{where}.server")


def _check_audit(entry: object, where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: not a JSON object")
    for name in ("at", "by", "command"):
        if not isinstance(entry.get(name), str):
            raise ValueError(f"{where}.{name}: not text")


def _check_switch(entry: object, where: str) -> None:
    try:
        Switch.of_entry(entry)
    except ValueError as error:
        raise ValueError(
            f"{where}.{error}" if isinstance(entry, dict) else f"{where}: {error}"
        ) from None


def _check_load(entry: object, where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: not a JSON object")
    _check_keys(entry, {"model", "server", "config", "with_files"}, f"{where}.")
    _check_name(entry["model"], f"{where}.model")
    _check_name(entry["server"], f"{where}.server")
    if entry["config"] is not None and not isinstance(entry["config"], str):
        raise ValueError(f"{where}.config: neither text nor null")
    if not isinstance(entry["with_files"], bool):
        raise ValueError(f"{where}.with_files: neither true nor false")


def _check_usage(entry: object, where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: not a JSON object")
    _check_keys(entry, {"month", "tenant", "model", *UNITS}, f"{where}.")
    for name in ("month", "tenant", "model"):
        _check_name(entry[name], f"{where}.{name}")
    for name in UNITS:
        if type(entry[name]) is not int or entry[name] < 0:
            raise ValueError(f"{where}.{name}: not a whole number")


STEERING = Contents(
    key="steering.state_file",
    without="with every server and every model in use",
    entries={
        "cordoned": _check_name,
        "blocks": _check_block,
        "disabled": _check_switch,
        "audit": _check_audit,
    },
    younger=frozenset({"disabled"}),
)
LOADS = Contents(
    key="model_control.state_file",
    without="with nothing to be loaded again",
    entries={"loads": _check_load},
)
USAGE = Contents(
    key="usage.state_file",
    without="with nothing used yet",
    entries={"usage": _check_usage},
)
