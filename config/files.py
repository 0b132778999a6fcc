"""Which files a configuration consists of, and whether they are still the ones that were read.

Reads no contents. Called by `config.loader`, and by wiring to notice changes.
"""

import os
from pathlib import Path

Fingerprint = tuple[tuple[str, int, int, int, int], ...]
"""Name, device, inode, size and time of change of each file: equal as long as nobody wrote."""


def files_of(path: Path) -> list[Path]:
    """Return the one file, or all *.yaml and *.yml of a folder in name order. Raises OSError."""
    if not os.path.isdir(path):
        return [path]
    return [path / name for name in sorted(os.listdir(path)) if _belongs(name)]


def fingerprint(path: Path) -> Fingerprint:
    """Return what tells whether the files at `path` were written, replaced, added or removed."""
    try:
        return tuple(_print_of(file) for file in files_of(path))
    except (OSError, ValueError):  # gone, or not a possible name: reading it says why
        return ()


def _print_of(file: Path) -> tuple[str, int, int, int, int]:
    found = os.stat(file)  # of what a link points to: Kubernetes replaces the link
    return (file.name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _belongs(name: str) -> bool:
    # Editors and Kubernetes keep files of their own there, all of them hidden.
    return name.endswith((".yaml", ".yml")) and not name.startswith(".")
