"""`triton-gateway usage`: what tenants have used of models in a month."""

import json as json_module
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.cli.ops_client import DEFAULT_URL, KeyFile, OpsUrl, ask_or_fail, connect
from gateway.cli.text import plain, table

_HEADER = ("TENANT", "MODEL", "REQUESTS", "ERRORS", "ROWS", "IN", "OUT", "COMPUTE")
_NUMBERS = tuple(range(2, len(_HEADER)))
_FORGOTTEN = ("", "This is forgotten at a restart: neither redis nor usage.state_file is set.")
_SHOWN_WHOLE = 1_000_000
_SECONDS_SHOWN = 3600
_STEP = 1024
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

View = Mapping[str, Any]


def usage(
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="A month (UTC); else this one.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="One tenant only.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything, exactly, as JSON.")] = False,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Show what tenants have used of models: requests, rows, bytes and compute time.

    Compute time is what the servers say they have computed, shared out by rows; it follows some
    seconds behind the requests.
    """
    found = ask_or_fail(connect(ops, key_file), "usage", month=month, tenant=tenant)
    typer.echo(json_module.dumps(found, indent=2) if json else as_text(found))


def as_text(view: View) -> str:
    """Return what `/usage` says, for people: lines up to 80 wide."""
    if not view["tenants"]:
        return f"{plain(view['month'])}: nothing used"
    rows = [_HEADER, *_rows(view["tenants"]), ("all", "", *_amounts(view["total"]))]
    lines = [f"{plain(view['month'])} (UTC)", "", *table(rows, numbers=_NUMBERS)]
    return "\n".join([*lines, *(_FORGOTTEN if view["kept_in"] == "memory" else ())])


def _rows(tenants: Sequence[View]) -> Iterator[tuple[object, ...]]:
    for tenant in tenants:
        name = tenant["tenant"]
        for used in tenant["models"]:
            yield name, used["model"], *_amounts(used)
            name = ""  # once is enough
        if len(tenant["models"]) > 1:
            yield "", "all", *_amounts(tenant)


def _amounts(used: View) -> tuple[object, ...]:
    counts = (_count(used[unit]) for unit in ("requests", "errors", "rows"))
    sizes = (_size(used["input_bytes"]), _size(used["output_bytes"]))
    return (*counts, *sizes, _time(used["compute_seconds"]))


def _count(count: int) -> str:
    return str(count) if count < _SHOWN_WHOLE else _scaled(count, 1000, ("", "k", "M", "G", "T"))


def _size(size: int) -> str:
    return f"{size} B" if size < _STEP else _scaled(size, _STEP, _SIZES)


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    for unit in units:
        if number < step or unit == units[-1]:
            break
        number /= step
    return f"{_short(number)} {unit}"


def _time(seconds: float) -> str:
    return f"{_short(seconds)} s" if seconds < _SECONDS_SHOWN else f"{_short(seconds / 3600)} h"


def _short(number: float) -> str:
    """Return three digits, or all before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"
