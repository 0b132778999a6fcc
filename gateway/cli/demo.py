"""`triton-gateway demo`: two real tritonservers with different models, and the gateway before them.

Everything it starts ends with it. Needs the extra `demo` and the sample models of a checkout.
"""

import asyncio
import json
import socket
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from config.loader import load_text
from gateway.cli.local_triton import LocalTriton, LocalTritonError
from gateway.cli.refusal import refuse
from gateway.cli.runtime import bind
from gateway.cli.serve import run_gateway

SAMPLE_MODELS = Path(__file__).resolve().parents[2] / "deploy" / "models"
SERVERS = {
    "a": ("simple_onnx", "custom_model", "identity_fp32", "priority"),
    "b": ("simple_onnx", "resnet50_onnx", "identity_fp32", "accumulator", "repeat"),
}
"""Which sample models each server holds: some on both, some on one."""

_CONFIG = """
servers:
{servers}
api: {{host: 127.0.0.1, port: {api_port}}}
ops: {{port: {ops_port}}}
logging: {{format: console, level: error, requests: errors}}
shutdown: {{drain_delay_s: 0, grace_s: 5}}
"""
_SERVER = "  - {{name: {name}, grpc: '{triton.grpc_address}', http: '{triton.http_address}'}}"
_SAMPLE_MODEL = "simple_onnx"
_SAMPLE_BODY = """{"inputs": [
      {"name": "input__0", "datatype": "FP32", "shape": [1, 10],
       "data": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}]}"""
_FAST_LOAD = "--disable-auto-complete-config"  # the samples are configured completely
_REQUEST_TIMEOUT_S = 10


def demo(
    api_port: Annotated[int, typer.Option(help="Port of the REST API.", envvar="API_PORT")] = 8080,
    ops_port: Annotated[
        int, typer.Option(help="Port of the ops listener.", envvar="OPS_PORT")
    ] = 8081,
    models: Annotated[
        Path, typer.Option(help="Folder with the sample models.", show_default=False)
    ] = SAMPLE_MODELS,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Check one answer, stop, and exit 0 or 1.")
    ] = False,
) -> None:
    """Start two real tritonservers and the gateway, and show a first request."""
    if not models.is_dir():
        refuse(f"{models}: no sample models there; run this in a checkout, or pass --models")
    api_socket = bind("api", "127.0.0.1", api_port)
    ops_socket = bind("ops", "127.0.0.1", ops_port)
    show = _Show(api_socket, ops_socket, smoke=smoke)
    try:
        with _tritons(models) as servers:
            config = load_text(_config_text(servers, api_port, ops_port), "demo.yaml")
            run_gateway(config, [api_socket], ops_socket, when_ready=show.run)
    except LocalTritonError as error:
        refuse(f"demo: {error}")
    except KeyboardInterrupt:
        pass  # while the servers were starting; later the gateway handles it
    typer.echo("Stopped; nothing was left behind.")
    if smoke and not show.answered:
        raise typer.Exit(1)


@contextmanager
def _tritons(models: Path) -> Iterator[dict[str, LocalTriton]]:
    typer.echo(f"Starting {len(SERVERS)} tritonservers (some seconds) ...")
    with ExitStack() as stack:
        servers = {}
        for name, loaded in SERVERS.items():
            servers[name] = LocalTriton(
                models, server_id=name, load=loaded, extra_args=(_FAST_LOAD,)
            )
            stack.callback(servers[name].kill)
            servers[name].start()
        for name, triton in servers.items():
            triton.wait_ready()
            typer.echo(
                f"  server {name}: gRPC {triton.grpc_address}, HTTP {triton.http_address}, "
                f"pid {triton.pid}"
            )
        yield servers
        typer.echo("\nStopping the tritonservers ...")


def _config_text(servers: dict[str, LocalTriton], api_port: int, ops_port: int) -> str:
    lines = [_SERVER.format(name=name, triton=triton) for name, triton in servers.items()]
    return _CONFIG.format(servers="\n".join(lines), api_port=api_port, ops_port=ops_port)


class _Show:
    """What the demo prints once the gateway is ready."""

    def __init__(self, api: socket.socket, ops: socket.socket, *, smoke: bool) -> None:
        self._api = f"http://127.0.0.1:{api.getsockname()[1]}"
        self._ops = f"http://127.0.0.1:{ops.getsockname()[1]}"
        self._smoke = smoke
        self.answered = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Show models, a request and the addresses; end the demo if it is a smoke test."""
        try:
            await asyncio.to_thread(self._show)
        finally:
            if self._smoke:
                stopping.set()

    def _show(self) -> None:
        typer.echo("\nModels behind the gateway:\n")
        typer.echo(_table(_get(f"{self._api}/v2/models")["models"]))
        url = f"{self._api}/v2/models/{_SAMPLE_MODEL}/infer"
        typer.echo(f"\nThe first request:\n\n  curl {url} -d '\n    {_SAMPLE_BODY}'\n")
        answer = _post(url, _SAMPLE_BODY.encode())
        typer.echo(_indented(json.dumps(answer)) + "\n")
        self.answered = answer["model_name"] == _SAMPLE_MODEL and len(answer["outputs"]) == 1
        typer.echo(f"REST API   {self._api}")
        typer.echo(f"Fleet      {self._ops}/fleet")
        typer.echo(f"Metrics    {self._ops}/metrics")
        if not self._smoke:
            typer.echo(
                "\nKill a server by its pid and send the request again: it is still answered."
            )
            typer.echo("Ctrl-C stops everything.")


def _table(models: list[dict[str, Any]]) -> str:
    rows = [("MODEL", "VERSION", "SERVERS", "")]
    for model in models:
        for version in model["versions"]:
            is_default = version["version"] == model["default_version"]
            rows.append(
                (
                    model["name"],
                    version["version"],
                    " ".join(version["servers"]),
                    "default" if is_default and len(model["versions"]) > 1 else "",
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        (
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _indented(text: str) -> str:
    return textwrap.fill(text, 78, initial_indent="  ", subsequent_indent="  ")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_REQUEST_TIMEOUT_S) as answer:
        return json.load(answer)


def _post(url: str, body: bytes) -> Any:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
        return json.load(answer)
