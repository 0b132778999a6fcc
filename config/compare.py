"""In what two configurations differ, and a short name for what one says.

Compares values, not text: comments, the order of keys and defaults written out make no difference.
Called by wiring at a reload, and by the command line.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from config.models import Config
from config.policies import ModelPolicy
from config.tree import Loc, join

_DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that changed, None where it is not set. Servers and sources are told by name.

    One that was added or removed is one difference, its whole section the value.
    """

    loc: Loc
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """The dotted key, such as `servers.gpu-1.capacity`."""
        key = ""
        for part in self.loc:
            key = join(key, part)
        return key


def digest(config: Config) -> str:
    """Return twelve hexadecimal digits that are the same for equal configurations.

    Secrets count by where they are found, not by their value.
    """
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def differences(before: Config, after: Config) -> list[Difference]:
    """Return what changed, section by section."""
    old, new = _plain(before), _plain(after)
    usual = ModelPolicy().model_dump(mode="json", exclude_none=True)
    for ours, others in ((old, new), (new, old)):
        # A model that is not listed has a policy, too: the usual one.
        ours["models"] = dict.fromkeys(others["models"], usual) | ours["models"]
    return list(_differ((), old, new))


def _plain(config: Config) -> dict[str, Any]:
    plain = config.model_dump(mode="json", exclude_none=True)
    for section in ("servers", "discovery"):
        plain[section] = {named["name"]: named for named in plain[section]}
    return plain


def _differ(loc: Loc, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from _differ((*loc, key), before.get(key), after.get(key))
    elif before != after:
        yield Difference(loc, before, after)
