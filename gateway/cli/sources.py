"""Asks the configured sources of servers once, for commands that look at real servers."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from config.discovery import Discovery
from config.servers import Server
from gateway.discovery.source import Answer, SourceFailed, first_answer
from gateway.upstream.findings import Finding, Target, error, warning
from gateway.wiring.servers import target_of, unusable
from gateway.wiring.sources import source_of

_TIMEOUT_S = 15.0
_FIX = "correct the secrets and TLS files that the source gives its servers"


async def discover(
    sections: Sequence[Discovery], environ: Mapping[str, str], *, taken: Collection[str]
) -> tuple[dict[str, Target], list[Finding]]:
    """Return the servers that the sources name now, and what is wrong with the sources.

    Servers whose names are `taken` are left out.
    """
    answers = await asyncio.gather(*map(_ask, sections))
    targets: dict[str, Target] = {}
    findings: list[Finding] = []
    for section, answer in zip(sections, answers, strict=True):
        if isinstance(answer, Finding):
            findings.append(answer)
            continue
        findings += _doubts(section, answer)
        for server in answer.servers:
            reason = unusable(server, environ)
            if reason is not None:
                findings.append(error("discovery-unusable", f"{server.name}: {reason}", _FIX))
            elif server.name not in taken:
                targets.setdefault(server.name, target_of(server, environ))
    return targets, findings


async def _ask(section: Discovery) -> Answer[Server] | Finding:
    source = source_of(section)
    try:
        return await first_answer(source, timeout_s=_TIMEOUT_S)
    except SourceFailed as failure:
        said = f"the source '{section.name}' fails: {failure}"
        return error("discovery-failed", said, source.fix)


def _doubts(section: Discovery, answer: Answer[Server]) -> list[Finding]:
    found = []
    fix = source_of(section).fix
    if answer.problem:
        message = f"the source '{section.name}' fails in part: {answer.problem}"
        found.append(error("discovery-failed", message, fix))
    if not answer.servers:
        message = f"the source '{section.name}' names no server"
        found.append(warning("discovery-empty", message, fix))
    return found
