"""`triton-gateway fleet`: the fleet of a running gateway in 80 columns, once or again and again."""

import contextlib
import json as json_module
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer

from gateway.cli.ops_client import (
    DEFAULT_URL,
    KeyFile,
    OpsClient,
    OpsError,
    OpsUrl,
    ask_or_fail,
    connect,
)
from gateway.cli.refusal import refuse
from gateway.cli.text import table, wrapped

INTERVAL_S = 2.0

_CLEAR = "\x1b[H\x1b[2J"
_SHOWN_COMMANDS = 5
_SERVERS_HEADER = ("SERVER", "STATE", "TRITON", "IN FLIGHT", "DETACHED", "CHANNELS")
_WORKERS_HEADER = ("WORKER", "STATE", "SINCE", "PID", "REQUESTS", "MEMORY")
_MODELS_HEADER = ("MODEL", "VERSION", "ON", "SERVERS", "")
_CHANNEL = {"transient_failure": "failing"}  # gRPC's word is too long for a column
_ENTRY = ("at", "by", "command", "changed")

View = Mapping[str, Any]


def fleet(
    watch: Annotated[bool, typer.Option("--watch", help="Redraw every 2 s until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Show servers, models and their versions, and what is out of use and why."""
    if watch and json:
        refuse("--watch: not together with --json")
    client = connect(ops, key_file)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(client)
        return
    view = ask_or_fail(client, "fleet")
    typer.echo(json_module.dumps(view, indent=2) if json else as_text(view))


def _watch(client: OpsClient) -> NoReturn:
    text = as_text(ask_or_fail(client, "fleet"))
    while True:
        typer.echo(_cleared(text))
        time.sleep(INTERVAL_S)
        try:
            text = as_text(client.get("fleet"))
        except OpsError as error:  # the gateway may be restarting: go on watching
            text = wrapped(str(error))


def _cleared(text: str) -> str:
    return f"{_CLEAR}{text}" if sys.stdout.isatty() else f"{text}\n"


def as_text(view: View) -> str:
    """Return what `/fleet` says, for people: paragraphs of lines up to 80 wide."""
    paragraphs = (
        [_headline(view), *_config(view["config"])],
        [*_section("SWITCHED OFF", map(_switch, view["steering"]["disabled"]))],
        [*_servers(view["servers"])],
        _workers(view["workers"]),
        [*_models(view["models"])],
        [*_findings(view["findings"])],
        [*_store(view["store"])],
        [*_section("WAITING FOR ROOM", _waiting(view["admission"].get("queued", {})))],
        [*_section("NOT READY", _not_ready(view))],
        [*_section("OPEN BREAKERS", map(_breaker, view["breakers"]))],
        [*_section("BLOCKED", map(_block, view["steering"]["blocks"]))],
        [*_section("MODEL CONTROL", _operations(view["model_control"]))],
        [*_section("LAST COMMANDS", _commands(view["steering"]))],
    )
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def _headline(view: View) -> str:
    servers = view["servers"]
    up = sum(row["up"] for row in servers)
    said = f"Servers up: {up} of {len(servers)}; models: {len(view['models'])}"
    reason = view["not_ready_reason"]
    return wrapped(f"{said}; the gateway is not ready: {reason}" if reason else said)


def _config(config: View) -> Iterator[str]:
    yield wrapped(f"Configuration {config['hash']}, loaded {config['loaded_at']}")
    for old in config["draining"]:
        left = f"requests: {old['requests']}, calls on servers: {old['calls']}"
        yield wrapped(f"still under way with {old['hash']}: {left}", "  ")
    if config["needs_restart"]:
        yield wrapped(f"waiting for a restart: {', '.join(config['needs_restart'])}", "  ")
    error = config["last_error"]
    if error is not None:
        yield wrapped(f"REFUSED at {error['at']} (by {error['by']}):", "  ")
        yield from (wrapped(problem, "    ") for problem in error["problems"])


def _switch(off: View) -> str:
    reason = f": {off['reason']}" if off["reason"] else ""
    return f"{off['feature']} until {off['until']}, by {off['by']}{reason}"


def _servers(rows: Sequence[View]) -> Iterator[str]:
    cells = [(row["name"], *_server(row)) for row in rows]
    yield from table([_SERVERS_HEADER, *cells], numbers=(3, 4))
    for row in rows:
        if not row["up"]:
            yield wrapped(f"{row['name']} is down: {row['reason']}", "  ")


def _workers(rows: Sequence[View]) -> list[str]:
    cells: list[tuple[object, ...]] = [_WORKERS_HEADER]
    for row in rows:
        since, memory = f"{row['since_s']:.0f} s", f"{row['resident_bytes'] / 2**20:.0f} MiB"
        figures = (row["pid"], row["requests_in_flight"], memory)
        cells.append((row["slot"], row["state"], since, *figures))
    return table(cells, numbers=(0, 2, 3, 4, 5)) if rows else []


def _server(row: View) -> tuple[object, ...]:
    told = {"down": not row["up"], "cordoned": row["cordoned"], "leaving": row["leaving"]}
    states = [state for state, holds in told.items() if holds]
    channels = Counter(_CHANNEL.get(each["state"], each["state"]) for each in row["channels"])
    return (
        ", ".join(states) or "up",
        row["triton_version"] or "-",
        row["in_flight_calls"],
        row["detached_calls"],
        ", ".join(f"{number} {state}" for state, number in channels.most_common()),
    )


def _models(models: Sequence[View]) -> list[str]:
    rows: list[tuple[object, ...]] = [_MODELS_HEADER]
    for model in models:
        for number, version in model["versions"].items():
            used = [name for name in version["servers"] if name not in version["steered_off"]]
            notes = _notes(version, used, is_default=int(number) == model["default_version"])
            rows.append((model["name"], number, len(used), ", ".join(used) or "-", notes))
    return table(rows, numbers=(1, 2)) if models else []


def _notes(version: View, used: Sequence[str], *, is_default: bool) -> str:
    notes = ["default"] if is_default else []
    if version["bad"]:
        notes.append("bad")
    if version["servers"] and not used:
        notes.append("taken out")
    return ", ".join(notes)


def _not_ready(view: View) -> Iterator[str]:
    """Yield what is not used and why, but for servers that are down and what was done by hand."""
    for row in view["servers"]:
        for model in row["models"] if row["up"] else ():
            if model["state"] != "READY":
                where = f"{model['name']} {model['version']} on {row['name']}"
                yield f"{where}: {model['state']}: {model['reason']}"
    for model in view["models"]:
        for number, version in model["versions"].items():
            for server, reason in version["left_out"].items():
                yield f"{model['name']} {number} on {server}: not used: {reason}"


def _findings(findings: Sequence[View]) -> Iterator[str]:
    shown = [found for found in findings if found["severity"] != "info"]
    if shown:
        yield "FINDINGS"
    for found in shown:
        of = found["server"] or "fleet"
        yield wrapped(f"{of}: {found['severity']}: {found['message']}", "  ")
        yield wrapped(f"fix: {found['fix']}", "    ")


def _store(store: View) -> Iterator[str]:
    if not store["up"]:
        yield wrapped(f"The shared store ({store['kind']}) is down: {store['reason']}")


def _waiting(queued: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for model, kinds in queued.items():
        if any(kinds.values()):
            yield f"{model}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}"


def _breaker(breaker: View) -> str:
    model, _, version = breaker["of"].rpartition("/")
    which = f"{model} {version} on" if model else "connection to"
    return f"{which} {breaker['server']}: {breaker['circuit'].replace('_', ' ')}"


def _block(block: View) -> str:
    version = "every version" if block["version"] is None else f"version {block['version']}"
    server = "all servers" if block["server"] is None else block["server"]
    return f"{block['model']}, {version}, on {server}"


def _commands(steering: View) -> Iterator[str]:
    for entry in steering["audit"][-_SHOWN_COMMANDS:]:
        of = (f"{name} {value}" for name, value in entry.items() if value and name not in _ENTRY)
        yield f"{entry['at']} {entry['by']}: {', '.join([entry['command'], *of])}"
    if not steering["survives_restart"] and (steering["cordoned"] or steering["blocks"]):
        yield "This is forgotten at a restart: steering.state_file is not set."


def _operations(control: View) -> Iterator[str]:
    """Yield the commands to load and unload that are under way, and the last that have failed."""
    for operation in control["operations"]:
        if operation["state"] != "done":
            steps = ", ".join(f"{step['server']} {step['state']}" for step in operation["servers"])
            what = f"{operation['command']} {operation['model']}"
            yield f"{operation['since']} {operation['by']}: {what}: {steps}"
            for step in operation["servers"]:
                if "error" in step:
                    yield f"{step['server']}: {step['error']}"
    for load in (control["replay"] or {"loads": ()})["loads"]:
        if not load["replayed"]:
            where = f"{load['model']} on {load['server']}"
            yield f"{where} is not loaded again after a restart: {load['reason']}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0:
            yield title
        yield wrapped(line, "  ")
