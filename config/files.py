"""Which files a configuration consists of, and whether they are still the ones that were read.

Reads no contents. Called by `config.loader`, and by wiring to notice changes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

Fingerprint = tuple[tuple[str, int, int, int, int], ...]
"""Name, device, inode, size and time of change of each file: equal as long as nobody wrote."""


_NOT_NAMED = frozenset({"state_file", "discovery"})


def files_of(path: Path) -> list[Path]:
    """Return the one file, or all *.yaml and *.yml of a folder in name order. Raises OSError."""
    if not os.path.isdir(path):
        return [path]
    return [path / name for name in sorted(os.listdir(path)) if _belongs(name)]


def named_files(value: object) -> Iterator[Path]:
    """Yield the files a configuration names for reading: secrets, certificates, hashes of keys.

    Neither those the gateway writes itself, nor those of `discovery`, whose sources look after
    them.
    """
    if isinstance(value, Path):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            if name not in _NOT_NAMED:
                yield from named_files(getattr(value, name))
    elif isinstance(value, Mapping):
        yield from named_files(tuple(value.values()))
    elif isinstance(value, tuple):
        for item in value:
            yield from named_files(item)


def fingerprint(path: Path) -> Fingerprint:
    """Return what tells whether the files at `path` were written, replaced, added or removed."""
    try:
        return fingerprint_of(files_of(path))
    except (OSError, ValueError):  # gone, or not a possible name: reading it says why
        return ()


def fingerprint_of(files: Iterable[Path]) -> Fingerprint:
    """Return the same of single files; those that are not there are left out."""
    return tuple(found for file in files if (found := _print_of(file)))


def _print_of(file: Path) -> tuple[str, int, int, int, int] | None:
    try:
        found = os.stat(file)  # of what a link points to: Kubernetes replaces the link
    except (OSError, ValueError):
        return None
    return (file.name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _belongs(name: str) -> bool:
    # Editors and Kubernetes keep files of their own there, all of them hidden.
    return name.endswith((".yaml", ".yml")) and not name.startswith(".")
