"""What the section `discovery` means: sources that can be asked, and how far they are believed."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import assert_never

from config.discovery import Discovery as DiscoveryConfig
from config.discovery import DnsNames, KubernetesService, ServersFile, split_nameserver
from config.server_files import servers_in
from config.servers import Server
from config.tree import ConfigError
from gateway.discovery.feed import Feed, Surroundings
from gateway.discovery.file_source import FileSource
from gateway.discovery.kubernetes_source import KubernetesSettings, KubernetesSource
from gateway.discovery.source import MakeServer, Source, first_answer
from gateway.wiring.clock import Environ
from gateway.wiring.servers import unusable
from routing.retention import RetentionSettings


def source_of(section: DiscoveryConfig) -> Source[Server]:
    """Build one source. Nothing is asked yet."""
    kind = section.dns or section.file or section.kubernetes
    match kind:
        case DnsNames():
            return _dns_source(kind, section.server)
        case ServersFile():
            return FileSource(kind.path, partial(_read, section), interval_s=kind.interval_s)
        case KubernetesService():
            return KubernetesSource(_kubernetes(kind), section.server)
        case None:
            raise ValueError(f"the source '{section.name}' is of no kind")
        case _:
            assert_never(kind)


def feed_of(section: DiscoveryConfig, around: Surroundings[Server]) -> Feed[Server]:
    """Build what keeps the servers of one source."""
    settings = RetentionSettings(section.removal_grace_s, section.max_removed_share)
    return Feed(section.name, source_of(section), settings, around)


async def found_by(
    sections: Iterable[DiscoveryConfig], environ: Environ, *, timeout_s: float
) -> dict[str, list[Server]]:
    """Ask sources once, and return the servers of each that answers."""
    wanted = list(sections)
    answers = await asyncio.gather(
        *(first_answer(source_of(section), timeout_s=timeout_s) for section in wanted),
        return_exceptions=True,
    )
    return {
        section.name: [s for s in answer.servers if unusable(s, environ) is None]
        for section, answer in zip(wanted, answers, strict=True)
        if not isinstance(answer, BaseException)  # its feed will say so
    }


def _dns_source(section: DnsNames, make: MakeServer[Server]) -> Source[Server]:
    from gateway.discovery.dns_source import (  # noqa: PLC0415 - loads a library of 2 MB
        DnsSettings,
        DnsSource,
    )

    settings = DnsSettings(
        names=section.names,
        record=section.record,
        min_interval_s=section.min_interval_s,
        max_interval_s=section.max_interval_s,
        timeout_s=section.timeout_s,
        nameservers=[split_nameserver(text) for text in section.nameservers],
    )
    return DnsSource(settings, make)


def _kubernetes(section: KubernetesService) -> KubernetesSettings:
    return KubernetesSettings(
        namespace=section.namespace,
        service=section.service,
        port=section.port,
        kubeconfig=section.kubeconfig,
        context=section.context,
    )


def _read(section: DiscoveryConfig, data: bytes) -> Sequence[Server]:
    assert section.file is not None
    try:
        return servers_in(data, section.file.path, section)
    except ConfigError as error:
        raise ValueError(str(error).replace("\n", "; ")) from None
