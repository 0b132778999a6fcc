"""Operators' decisions, kept in one JSON file over a restart.

The file is replaced as a whole, so a crash leaves the old one or the new one. What is read is
checked entry by entry, since people edit such files. Only `gateway.steering` reads and writes it,
through `gateway.ports.SteeringStore`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.steering import MAX_VERSION

SCHEMA_VERSION = 1

_FIX = "repair it, or remove it to start with every server and every model in use"
_Check = Callable[[object, str], None]


class DamagedState(ValueError):
    """The file cannot be used; the message names it and says why and what to do."""


class StateFile:
    """One file. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def keeps(self) -> bool:
        """Whether anything outlasts a restart."""
        return self._path is not None

    def read(self) -> Mapping[str, Any]:
        """Return what was kept (`cordoned`, `blocks`, `audit`), empty if nothing was yet.

        Raises DamagedState for a file that is not exactly one of ours.
        """
        if self._path is None:
            return {}
        try:
            state = orjson.loads(self._path.read_bytes())
            _check_state(state)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DamagedState(
                f"{self._path}: cannot be read: {error.strerror or error} - make it readable"
            ) from None
        except orjson.JSONDecodeError as error:
            raise DamagedState(f"{self._path}: not JSON: {error} - {_FIX}") from None
        except ValueError as error:
            raise DamagedState(f"{self._path}: {error} - {_FIX}") from None
        return {name: state[name] for name in _ENTRIES}

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


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_state(state: object) -> None:
    if not isinstance(state, dict):
        raise ValueError("not a JSON object")
    if state.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version: not {SCHEMA_VERSION}, the one this gateway writes")
    _check_keys(state, {"schema_version", *_ENTRIES}, "")
    for name, check in _ENTRIES.items():
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


_ENTRIES: Mapping[str, _Check] = {
    "cordoned": _check_name,
    "blocks": _check_block,
    "audit": _check_audit,
}
