"""The command line. Each command is a module; this one names them.

Exit codes: 0 for success, 1 for a failure while working, 2 for a request or a configuration that
was refused before anything started.
"""

from typing import Annotated

import typer

from gateway import __version__
from gateway.cli.check import check
from gateway.cli.demo import demo
from gateway.cli.explain import explain
from gateway.cli.fleet import fleet
from gateway.cli.init import init
from gateway.cli.keys import keys_app
from gateway.cli.limits import limits_app
from gateway.cli.models import load, unload
from gateway.cli.reload import reload
from gateway.cli.restart import restart
from gateway.cli.serve import serve
from gateway.cli.steering import breaker_app, model_app, servers_app
from gateway.cli.switches import disable, enable
from gateway.cli.usage import usage
from gateway.cli.worker import worker

app = typer.Typer(
    name="triton-gateway",
    help="One REST address in front of a fleet of NVIDIA Triton Inference Servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command(hidden=True)(worker)
app.command()(check)
app.command()(demo)
app.command()(init)
app.command()(fleet)
app.command()(restart)
app.command()(explain)
app.command()(reload)
app.command()(usage)
app.command()(disable)
app.command()(enable)
model_app.command()(load)
model_app.command()(unload)
app.add_typer(keys_app, name="keys")
app.add_typer(servers_app, name="servers")
app.add_typer(model_app, name="model")
app.add_typer(breaker_app, name="breaker")
app.add_typer(limits_app, name="limits")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"triton-gateway {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
