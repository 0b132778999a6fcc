"""What people read of usage fits into 80 columns, whatever the amounts."""

from typing import Any

import pytest

from gateway.cli.usage import as_text

HUGE = {"requests": 10**13, "errors": 10**6, "rows": 10**15, "input_bytes": 2**60,
        "output_bytes": 2**20 - 1000, "compute_seconds": 10**9 + 0.5}  # fmt: skip
SMALL = {"requests": 999_999, "errors": 0, "rows": 7, "input_bytes": 1023,
         "output_bytes": 1536, "compute_seconds": 0.1234}  # fmt: skip


def month(tenants: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    rows = [
        {"tenant": name, **HUGE, "models": [{"model": m, **used} for m, used in models.items()]}
        for name, models in tenants.items()
    ]
    return {"month": "2026-11", "kept_in": "redis", "total": HUGE, "tenants": rows}


SHOWN = """\
2026-11 (UTC)

TENANT  MODEL  REQUESTS  ERRORS    ROWS        IN       OUT   COMPUTE
acme    m        999999       0       7    1023 B   1.5 KiB   0.123 s
        n          10 T     1 M  1000 T  1024 PiB  1023 KiB  277778 h
        all        10 T     1 M  1000 T  1024 PiB  1023 KiB  277778 h
b       m        999999       0       7    1023 B   1.5 KiB   0.123 s
all                10 T     1 M  1000 T  1024 PiB  1023 KiB  277778 h"""


def test_small_amounts_are_exact_and_large_ones_rounded() -> None:
    assert as_text(month({"acme": {"m": SMALL, "n": HUGE}, "b": {"m": SMALL}})) == SHOWN


def test_what_will_be_forgotten_is_told() -> None:
    text = as_text({**month({"acme": {"m": SMALL}}), "kept_in": "memory"})
    assert text.splitlines()[-2:] == [
        "",
        "This is forgotten at a restart: neither redis nor usage.state_file is set.",
    ]


@pytest.mark.parametrize("name", ["x" * 200, "\x1b[31m", "\n"])
def test_it_fits_whatever_the_names(name: str) -> None:
    text = as_text(month({name: {name: HUGE, f"{name}2": SMALL}}))
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith(SHOWN.splitlines()[-1].partition("all")[2].lstrip())  # no number is cut
    assert text.replace("\n", "").isprintable()


def test_nothing_is_said_to_be_nothing() -> None:
    assert as_text(month({})) == "2026-11: nothing used"
