"""The clocks and the environment of the real world, which every part is given by wiring."""

import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime

CLOCK = time.monotonic
WALL_CLOCK = time.time
Environ = Mapping[str, str]


def begun() -> str:
    """Return `routing.sequences.Pin.begun`: microseconds, and chance for two in the same one."""
    return f"{time.time_ns() // 1000:016x}{random.getrandbits(32):08x}"


def now_text() -> str:
    """Return the wall-clock time as ISO 8601 text."""
    return datetime.now(UTC).isoformat(timespec="seconds")
