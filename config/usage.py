"""Usage accounting: what tenants have used of models, by month.

Decides what may be said about it. Counts nothing.
"""

from pydantic import Field

from config.fields import FileName, Seconds, Section


class Usage(Section):
    """What each tenant uses of each model: counted, kept by month, shown to operators."""

    enabled: bool = True
    """Count it. On by default, since it costs a request about a microsecond; `false` for those who
    must not keep it."""
    flush_interval_s: Seconds = 5.0
    """Time between two additions to the months, in seconds. What a gateway that is killed has
    counted since the last one is lost: five seconds of it."""
    retention_months: int = Field(13, ge=1, le=120)
    """Months that are kept. Thirteen: this one, and the same one a year ago."""
    state_file: FileName | None = None
    """File that keeps the months over a restart, of a gateway without `redis`. It is written by the
    gateway, so its folder must exist and be writable. Unset, and without `redis`, they are
    forgotten at a restart."""
