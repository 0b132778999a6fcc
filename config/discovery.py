"""Sources of servers: names in the DNS, a watched file, the endpoints of a Kubernetes service.

Decides what may be said about a source, and how a server that was found is described and called.
Asks no source. Wiring hands each source to `gateway.discovery`.
"""

import re
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from config.fields import (
    MAX_PORT,
    FileName,
    Host,
    Port,
    Seconds,
    SecondsOrZero,
    Section,
    Text,
    parse_ip,
)
from config.servers import Server, ServerTraits

_SOURCE = r"^[a-z0-9]([a-z0-9._-]{0,14}[a-z0-9])?$"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_MAX_NAME = 63
_DNS_PORT = 53


def _check_source(name: str) -> str:
    if not re.fullmatch(_SOURCE, name):
        raise ValueError(
            f"{name[:80]!r} - use at most 16 of a-z 0-9 . _ - and begin and end with a letter or"
            " digit"
        )
    return name


def _check_label(name: str) -> str:
    if len(name) > 63 or not re.fullmatch(_LABEL, name):
        raise ValueError(
            f"{name[:80]!r} - use at most 63 of a-z 0-9 - and begin and end with a letter or digit"
        )
    return name


def _check_nameserver(text: str) -> str:
    split_nameserver(text)
    return text


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    # Pydantic's own minimum also complains when there are names and none of them is valid.
    if not names:
        raise ValueError("the list is empty - write the name to resolve")
    return names


def split_nameserver(text: str) -> tuple[str, int]:
    """Return the address and port of `10.0.0.2`, `10.0.0.2:53`, `fd00::2` or `[fd00::2]:53`.

    Raises ValueError for anything else.
    """
    if parse_ip(text):
        return text, _DNS_PORT
    found = re.fullmatch(r"(\[(?P<six>[^\]]+)\]|(?P<four>[^:]+)):(?P<port>[0-9]{1,5})", text)
    host = (found["six"] or found["four"]) if found else ""
    if not found or not parse_ip(host) or not 1 <= int(found["port"]) <= MAX_PORT:
        raise ValueError(f"{text!r} - write an IP address, or one with a port: 10.0.0.2:53")
    return host, int(found["port"])


SourceName = Annotated[
    str,
    AfterValidator(_check_source),
    WithJsonSchema({"type": "string", "pattern": _SOURCE}),
]
KubernetesName = Annotated[
    str,
    AfterValidator(_check_label),
    WithJsonSchema({"type": "string", "pattern": f"^{_LABEL}$", "maxLength": 63}),
]
Nameserver = Annotated[str, AfterValidator(_check_nameserver)]
Names = Annotated[
    tuple[Host, ...],
    Strict(False),
    AfterValidator(_check_names),
    Field(json_schema_extra={"minItems": 1}),
]
Nameservers = Annotated[tuple[Nameserver, ...], Strict(False)]


class DnsNames(Section):
    """Names in the DNS, resolved again and again: each address is a server."""

    names: Names
    """Names to resolve. All their addresses together are the servers of the source."""
    record: Literal["a", "aaaa", "srv"] = "a"
    """Which records are asked for: `a` are IPv4 addresses, the default, `aaaa` IPv6 addresses.
    `srv` are hosts with the gRPC port of each; a host's own address is looked up, IPv4 first."""
    min_interval_s: Seconds = 5.0
    """Shortest time between two look-ups, in seconds, for answers that may be kept for less. Five
    seconds spare the nameserver. Also the wait after a look-up that failed."""
    max_interval_s: Seconds = 60.0
    """Longest time between two look-ups, in seconds, for answers that may be kept for longer. A
    minute finds a new server soon."""
    timeout_s: Seconds = 5.0
    """Longest wait for the answer to one look-up, in seconds; time enough to ask a second
    nameserver."""
    nameservers: Nameservers = ()
    """Nameservers to ask, as IP addresses with or without a port (53). By default those of
    `/etc/resolv.conf`, with its search list."""


class ServersFile(Section):
    """A file that lists servers and is read again when it changes."""

    path: FileName
    """YAML or JSON. Either a list of servers with the keys of `servers[]` (`name` may be left out,
    `http` and `metrics` follow from the ports below), also below a key `servers`; or the format of
    Prometheus' `file_sd`: groups of `targets` and `labels`. The labels `zone`, `pool` and
    `capacity` are understood and all others ignored. Replace the file in one step (write another
    one, then rename it), and keep it out of a folder of configuration files."""
    interval_s: Seconds = 1.0
    """Time between two looks at the file, in seconds. A second costs next to nothing."""
    targets: Literal["grpc", "metrics"] = "grpc"
    """Which port the `targets` of a `file_sd` file name. `grpc`, the default; or `metrics`, for a
    file that Prometheus uses, too: then the gRPC port is `servers.grpc_port`. A target without a
    port has the ports below."""


class KubernetesService(Section):
    """The endpoints of a service in Kubernetes. Needs `pip install 'triton-gateway[kubernetes]'`
    and the right to list and watch `endpointslices`."""

    service: KubernetesName
    """Name of the service. It may well be headless: the pods are addressed one by one."""
    namespace: KubernetesName
    """Namespace of the service."""
    port: Text | None = None
    """Name of the service's port that is Triton's gRPC port. Unset, it is `servers.grpc_port`."""
    kubeconfig: FileName | None = None
    """File with the address of the cluster and a user's credentials. Unset, the service account of
    the gateway's own pod is used."""
    context: Text | None = None
    """Context within `kubeconfig`. Unset, its current one."""


class ServerPorts(Section):
    """Where Triton's ports are when the source does not say."""

    grpc_port: Port = 8001
    """Triton's gRPC port, 8001 unless Triton was told otherwise."""
    http_port: Port | None = None
    """Triton's HTTP port (8000 by default). Unset, the diagnosis does not look at it."""
    metrics_port: Port | None = None
    """Triton's metrics port (8002 by default). Unset, the diagnosis does not look at it, and the
    servers' own metrics are not on `/metrics/fleet`."""


class FoundServers(ServerTraits, ServerPorts):
    """What all servers of a source have in common; a file may say otherwise for single ones."""


class Discovery(Section):
    """One source of servers that come and go."""

    name: SourceName
    """What logs, metrics and the fleet view call this source; unique, at most 16 characters. Its
    servers are called `<name>-<address>-<port>`."""
    dns: DnsNames | None = None
    """Servers whose addresses stand in the DNS."""
    file: ServersFile | None = None
    """Servers that stand in a file which something else writes."""
    kubernetes: KubernetesService | None = None
    """Servers that are the endpoints of a Kubernetes service. An endpoint that terminates gets
    nothing new. Whether it is ready is for the gateway to judge: Kubernetes calls a Triton not
    ready while it loads any model."""
    servers: FoundServers = Field(default_factory=FoundServers)
    """What the servers of this source have in common, with the keys of `servers[]`."""
    removal_grace_s: SecondsOrZero = 30.0
    """How long a server that the source no longer names stays in use while it answers, in seconds.
    Half a minute gets over a source that flaps. 0 lets it go at once."""
    max_removed_share: float = Field(0.5, ge=0, le=1)
    """Share of the servers above which they are not removed when they go missing together, 0 to 1:
    they stay for as long as they answer, and the fleet view says so. Half, so that a source that
    is broken or empty cannot empty the fleet. 1 switches the rule off."""

    def server(self, host: str, port: int | None = None, zone: str | None = None) -> Server:
        """Describe a server that was found at a host, with its gRPC port and zone if known."""
        ports = self.servers
        grpc_port = port or ports.grpc_port
        traits = {name: getattr(ports, name) for name in ServerTraits.model_fields}
        return Server(
            name=server_name(self.name, host, grpc_port),
            grpc=_joined(host, grpc_port),
            http=_joined(host, ports.http_port) if ports.http_port else None,
            metrics=_joined(host, ports.metrics_port) if ports.metrics_port else None,
            **{**traits, "zone": traits["zone"] or zone},
        )


def server_name(source: str, host: str, port: int) -> str:
    """Return `<source>-<host>-<port>`, fit for a server's name; a long host ends in a hash."""
    plain = re.sub(r"[^a-z0-9.-]", "_", host.lower())
    room = _MAX_NAME - len(f"{source}--{port}")
    if len(plain) > room:
        plain = f"{plain[: room - 9]}_{sha256(host.lower().encode()).hexdigest()[:8]}"
    return f"{source}-{plain}-{port}"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
