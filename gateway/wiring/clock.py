"""The clocks and the environment of the real world, which every part is given by wiring."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

CLOCK = time.monotonic
WALL_CLOCK = time.time
Environ = Mapping[str, str]


def now_text() -> str:
    """Return the wall-clock time as ISO 8601 text."""
    return datetime.now(UTC).isoformat(timespec="seconds")
