"""`triton-gateway init`: a first configuration from addresses, or from what Prometheus scrapes."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from config.fields import Address, same_address
from gateway.cli.first_config import first_config, names_for
from gateway.cli.live import at_once, run
from gateway.cli.prometheus import NoTargets, active_targets, tritons_among
from gateway.cli.refusal import refuse
from gateway.upstream.discover import Discovery, discover
from gateway.upstream.findings import Finding
from gateway.upstream.survey import survey
from gateway.wiring import CLOCK

_ADDRESS = TypeAdapter[str](Address)

Addresses = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST:PORT ...", help="Any port of each Triton: gRPC, HTTP or metrics."),
]
Prometheus = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Take the Tritons this Prometheus server scrapes.", show_default=False
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write to a new file instead of standard output."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file of --output.")]


def init(
    addresses: Addresses = None,
    from_prometheus: Prometheus = None,
    output: Output = None,
    force: Force = False,
) -> None:
    """Find servers and write a first configuration for them; exit 1 if none is reached."""
    if bool(addresses) == bool(from_prometheus):
        refuse("write the HOST:PORT of one or more Tritons, or --from-prometheus URL")
    if output is not None and output.exists() and not force:
        refuse(f"{output}: exists already - choose another name, or add --force")
    if from_prometheus:
        wanted = _from_prometheus(from_prometheus)
    else:
        wanted = list(dict.fromkeys(_address(text) for text in addresses or ()))
    text = run(lambda: _configuration(wanted))
    if output is None:
        typer.echo(text, nl=False)
        return
    _write(output, text, force=force)


async def _configuration(addresses: list[str]) -> str:
    found = await at_once(addresses, lambda address: discover(address, clock=CLOCK))
    left_out = {
        address: one.diagnosis.findings
        for address, one in found.items()
        if not one.diagnosis.reachable
    }
    for address, findings in left_out.items():
        _tell(address, findings)
    servers = names_for(_distinct(found))
    if not servers:
        typer.echo("no Triton was reached", err=True)
        raise typer.Exit(1)
    fleet = await survey(
        {name: one.target for name, one in servers.items()},
        {name: one.diagnosis for name, one in servers.items()},
        clock=CLOCK,
    )
    return first_config(servers, left_out, fleet)


def _distinct(found: dict[str, Discovery]) -> list[Discovery]:
    """Return the servers that were reached, once each: several ports may lead to one server."""
    servers: dict[tuple[str, int], Discovery] = {}
    for address, one in found.items():
        if one.diagnosis.reachable:
            first = servers.setdefault(same_address(one.target.grpc), one)
            if first is not one:
                typer.echo(f"{address}: belongs to {one.target.grpc} as well", err=True)
    return list(servers.values())


def _address(text: str) -> str:
    """Return an argument as `host:port`; a scheme and a path are cut off, anything else refused."""
    _, scheme, rest = text.rpartition("://")
    address = rest.partition("/")[0]
    if address != text:
        part = "the scheme" if scheme else "the path"
        typer.echo(f"{text}: taken as {address}, without {part}", err=True)
    try:
        return _ADDRESS.validate_python(address)
    except ValidationError as invalid:
        refuse(*(error["msg"].removeprefix("Value error, ") for error in invalid.errors()))


def _from_prometheus(url: str) -> list[str]:
    if not url.startswith(("http://", "https://")):
        refuse(f"--from-prometheus: {url!r} - write its address, as in http://prometheus:9090")
    try:
        targets = active_targets(url)
    except NoTargets as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
    tritons = run(lambda: tritons_among(targets))
    if not tritons:
        typer.echo(f"none of the {len(targets)} targets looks like a Triton", err=True)
        raise typer.Exit(1)
    return tritons


def _tell(address: str, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        typer.echo(f"{address}: {finding.message} - {finding.fix}", err=True)


def _write(output: Path, text: str, *, force: bool) -> None:
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        refuse(f"{output}: cannot be written: {error.strerror or error}")
    typer.echo(f"wrote {output}; next: triton-gateway check --config {output} --live", err=True)
