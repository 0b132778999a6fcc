"""`triton-gateway limits`: what a tenant has used of its rate limits, and giving it all back."""

from typing import Annotated, Any

import typer

from gateway.cli.ops_client import (
    DEFAULT_URL,
    KeyFile,
    OpsUrl,
    ask_or_fail,
    command_or_fail,
    connect,
)
from gateway.cli.text import plain

limits_app = typer.Typer(help="See and reset what tenants have used up.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(metavar="TENANT", show_default=False)]


@limits_app.command()
def show(tenant: Tenant, ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None) -> None:
    """Print what is left of every limit of a tenant."""
    found = ask_or_fail(connect(ops, key_file), "limits", tenant)
    for quota in found["quotas"]:
        typer.echo(_line(quota))
    if not found["quotas"]:
        typer.echo(f"{plain(tenant)}: no limits")


@limits_app.command()
def reset(tenant: Tenant, ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None) -> None:
    """Give a tenant all its limits back, on all gateways that share a Redis.

    Limits it shares with other tenants stay as they are; places of requests that are still under
    way are counted again within seconds.
    """
    done = command_or_fail(connect(ops, key_file), "limits", tenant, "reset")
    for name in done["reset"]:
        typer.echo(f"{plain(name)}: reset")
    if not done["reset"]:
        typer.echo(f"{plain(tenant)}: no limits of its own")


def _line(quota: dict[str, Any]) -> str:
    of = f" for {plain(quota['model'])}" if quota["model"] else ""
    name = f"{plain(quota['limit'])}{of}"
    if "taken" in quota:
        return f"{name}: {quota['taken']} of {quota['most']} at a time"
    again = f", full again in {quota['full_again_s']:g} s" if quota["full_again_s"] else ""
    return f"{name}: {quota['remaining']} of {quota['most']} {quota['limits']} left{again}"
