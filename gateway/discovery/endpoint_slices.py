"""What the EndpointSlices of a service say, kept up to date by the events of a watch.

Works on the JSON of the API (discovery.k8s.io/v1). Knows nothing of HTTP. Whether an endpoint is
ready is not looked at: Triton's readiness probe fails while any model loads, and the gateway asks
the server itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.discovery.source import SourceFailed

Json = Mapping[str, Any]
Address = tuple[str, int | None]


class Expired(Exception):
    """The version a watch began at is too old (410 Gone): list again."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod of the service. `port` is None when the source has no say in it."""

    host: str
    port: int | None
    zone: str | None
    terminating: bool


class EndpointSlices:
    """All slices of one service. `port_name` names the port that is Triton's gRPC port."""

    def __init__(self, port_name: str | None) -> None:
        self._port_name = port_name
        self._slices: dict[str, Json] = {}
        self.version = ""

    def replace(self, listing: Json) -> None:
        """Take over a whole list."""
        self.version = listing["metadata"]["resourceVersion"]
        self._slices = {item["metadata"]["name"]: item for item in listing.get("items") or ()}

    def apply(self, event: Json) -> bool:
        """Take over one event of a watch; return whether anything but the version has changed.

        Raises Expired, and SourceFailed for other errors.
        """
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("code") == 410:
                raise Expired
            raise SourceFailed(f"the watch has failed: {item.get('message') or item}")
        self.version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        name = item["metadata"]["name"]
        if kind == "DELETED":
            return self._slices.pop(name, None) is not None
        changed = bool(self._slices.get(name) != item)
        self._slices[name] = item
        return changed

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints, each address once.

        A service with IPv4 and IPv6 addresses has every pod twice; the IPv4 ones count. Raises
        SourceFailed when a slice does not have the port.
        """
        by_family: dict[bool, dict[Address, Endpoint]] = {True: {}, False: {}}
        for item in self._slices.values():
            found = by_family[item.get("addressType") == "IPv4"]
            for endpoint in self._of(item):
                at = (endpoint.host, endpoint.port)
                if at not in found or found[at].terminating:  # one that moves stands in two slices
                    found[at] = endpoint
        return list((by_family[True] or by_family[False]).values())

    def _of(self, item: Json) -> Iterator[Endpoint]:
        listed = item.get("endpoints") or ()
        port = self._port(item) if listed else None
        for endpoint in listed:
            conditions = endpoint.get("conditions") or {}
            for address in (endpoint.get("addresses") or ())[:1]:  # the others lead to the same pod
                yield Endpoint(
                    host=address,
                    port=port,
                    zone=endpoint.get("zone"),
                    terminating=bool(conditions.get("terminating")),
                )

    def _port(self, item: Json) -> int | None:
        if self._port_name is None:
            return None
        ports = {port.get("name") or "": port.get("port") for port in item.get("ports") or ()}
        found = ports.get(self._port_name)
        if found is None:
            names = ", ".join(sorted(ports)) or "none"
            raise SourceFailed(f"the service has no port '{self._port_name}'; it has {names}")
        return int(found)
