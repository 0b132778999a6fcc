"""Files with hashes of API keys, and all hashes of a configuration, each once.

Read where secrets are: when a configuration is judged, and again while the parts are built.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from config.models import Config
from config.tenants import KeyHash, Tenant, parse_moment
from config.tree import Problem

_MAX_FILE_BYTES = 4 * 1024 * 1024
_HASH: TypeAdapter[str] = TypeAdapter(KeyHash)


@dataclass(frozen=True, slots=True)
class WrittenKey:
    """One key as an operator wrote it, and the file and line if it stands in a file of its own."""

    hash: str
    not_after: datetime | None
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def id(self) -> str:
        """The public part of the key, by which it is found."""
        return self.hash.split(":")[1]


def keys_of(tenant: Tenant) -> list[WrittenKey]:
    """Return all keys of a tenant. Raises OSError or ValueError for a file of no use."""
    keys = [WrittenKey(key.hash, _moment(key.not_after)) for key in tenant.keys]
    for path in tenant.key_files:
        keys += _read(path)
    return keys


def key_problems(config: Config) -> list[Problem]:
    """Return what is wrong with the files of hashes, and with hashes that are there twice."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for name, tenant in config.tenants.items():
        try:
            keys = keys_of(tenant)
        except (OSError, ValueError) as error:
            problems.append(_problem(config, name, str(error)))
            continue
        for key in keys:
            # Those in the configuration itself are compared by `tenant_checks`.
            if key.id in seen and key.file:
                where = f"{key.file}:{key.line}"
                problems.append(_problem(config, name, f"{where}: the key {key.id} is there twice"))
            seen.add(key.id)
    return sorted(problems)


def _problem(config: Config, tenant: str, message: str) -> Problem:
    nodes, rest = config.origin.root.find(("tenants", tenant, "key_files"))
    return nodes[-1].problem(f"{message} - correct the file", rest)


def _read(path: Path) -> Iterator[WrittenKey]:
    with path.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"{path}: larger than {_MAX_FILE_BYTES} bytes")
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield _key(text, str(path), number)


def _key(text: str, file: str, line: int) -> WrittenKey:
    hashed, _, until = text.partition(" ")
    try:
        return WrittenKey(_HASH.validate_python(hashed), _moment(until.strip()), file, line)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["ctx"]["error"]
    except ValueError as error:
        reason = error
    raise ValueError(f"{file}:{line}: {reason}")


def _moment(text: str | None) -> datetime | None:
    return parse_moment(text) if text else None
