"""Writes a first configuration for servers that were found: valid YAML with comments.

Decides names, which keys are worth writing, and what is said beside them. Called by `init`.
"""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import yaml

from config.fields import split_address
from gateway.upstream.discover import Discovery
from gateway.upstream.findings import Finding, Severity

_DEFAULT_ID = "triton"
_LONGEST_NAME = 63
_WIDTH = 80
_RESTRICTED = (
    "The server restricts calls (--grpc-restricted-protocol): put the key it was started with into"
    " the environment variable."
)
_HEAD = """\
# Written by `triton-gateway init`. Look at it, then
#   triton-gateway check --config FILE --live
#   triton-gateway serve --config FILE
"""


def names_for(found: Iterable[Discovery]) -> dict[str, Discovery]:
    """Give each server a legal name of its own: from its id, or else from where it is."""
    listed = list(found)
    hosts = Counter(split_address(one.target.grpc)[0] for one in listed)
    named: dict[str, Discovery] = {}
    for one in listed:
        wanted = _wanted_name(one, alone=hosts[split_address(one.target.grpc)[0]] == 1)
        name, number = wanted, 1
        while name in named:
            number += 1
            name = f"{wanted[: _LONGEST_NAME - 5]}-{number}"
        named[name] = one
    return named


def first_config(
    servers: Mapping[str, Discovery],
    left_out: Mapping[str, Sequence[Finding]],
    fleet: Iterable[Finding],
) -> str:
    """Return the configuration's text; `left_out` are addresses at which no Triton was found."""
    lines = [_HEAD.rstrip(), *_notes(fleet, "")]
    lines.append("servers:")
    for name, found in servers.items():
        lines += _server(name, found)
    for address, findings in left_out.items():
        lines += ["", f"  # {address} was left out:", *_notes(findings, "  ")]
    return "\n".join(lines) + "\n"


def _server(name: str, found: Discovery) -> Iterator[str]:
    target, diagnosis = found.target, found.diagnosis
    yield f"  - name: {_scalar(name)}"
    for key in ("grpc", "http", "metrics"):
        address = getattr(target, key)
        if address is not None:
            yield f"    {key}: {_scalar(address)}"
    if diagnosis.server_id not in ("", _DEFAULT_ID):
        yield f"    expect: {_scalar(diagnosis.server_id)}"
    if target.tls is not None:
        yield "    tls: {}"
    yield from _metadata(diagnosis.missing_keys)
    told = [found for found in diagnosis.findings if found.code != "restricted"]
    yield from _notes((found for found in told if found.severity is not Severity.INFO), "    ")


def _metadata(headers: Sequence[str]) -> Iterator[str]:
    if not headers:
        return
    yield "    metadata:"
    yield from _comment(_RESTRICTED, "      # ", "      # ")
    for header in headers:
        yield f"      {_scalar(header)}: {{env: {_variable(header)}}}"


def _variable(header: str) -> str:
    key = header.removeprefix("triton-grpc-protocol-")
    return "TRITON_" + re.sub(r"[^A-Z0-9]", "_", key.upper())


def _notes(findings: Iterable[Finding], indent: str) -> Iterator[str]:
    for finding in findings:
        yield from _comment(
            f"{finding.severity}: {finding.message}", f"{indent}# ", f"{indent}#   "
        )
        yield from _comment(f"fix: {finding.fix}", f"{indent}#   ", f"{indent}#     ")


def _comment(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )


def _wanted_name(found: Discovery, *, alone: bool) -> str:
    host, port = split_address(found.target.grpc)
    for text in (found.diagnosis.server_id, host if alone else f"{host}-{port}"):
        name = re.sub(r"[^a-z0-9._]+", "-", text.lower())[:_LONGEST_NAME].strip("._-")
        if name and text != _DEFAULT_ID:
            return name
    return f"server-{port}"


def _scalar(text: str) -> str:
    """Write text as a YAML scalar on one line, quoted where it has to be."""
    if not text.isprintable():
        return json.dumps(text)  # a double-quoted scalar of YAML, too
    return (
        yaml.safe_dump(text, width=10**9, allow_unicode=True)
        .removesuffix("\n")
        .removesuffix("\n...")
    )
