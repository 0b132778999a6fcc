"""Which of the targets that a Prometheus server scrapes are Tritons.

Reads the server's own list of targets (`/api/v1/targets`); a target counts when its labels or its
port look like Triton, or when its page has Triton's families. Called by `triton-gateway init`.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from config.fields import split_address
from gateway.cli.live import at_once
from gateway.upstream.addresses import join_address
from gateway.upstream.identify import Kind, identify

_TIMEOUT_S = 10.0
_PAGE_TIMEOUT_S = 2.0
_LIMIT_BYTES = 64 * 1024 * 1024
_METRICS_PORT = 8002
_DEFAULT_PORTS = {"http": 80, "https": 443}


class NoTargets(Exception):
    """The list of targets cannot be had; the text says why."""


def active_targets(url: str) -> dict[str, Mapping[str, Any]]:
    """Return the active targets of the Prometheus server at `url`, by `host:port`.

    Raises NoTargets.
    """
    address = f"{url.rstrip('/')}/api/v1/targets?state=active"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            said = json.loads(answer.read(_LIMIT_BYTES))
        targets = said["data"]["activeTargets"]
        return {at: target for target in targets if (at := _address(target)) is not None}
    except urllib.error.HTTPError as error:
        raise NoTargets(f"{address} was answered {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoTargets(f"{address} cannot be read: {error}") from None
    except (KeyError, TypeError):
        raise NoTargets(f"{address} is not the list of targets of a Prometheus") from None


async def tritons_among(targets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the addresses of the targets that are, or look like, the metrics of a Triton."""
    doubtful = [address for address, target in targets.items() if not _looks_like(address, target)]

    async def is_triton(address: str) -> bool:
        seen = await identify(*split_address(address), timeout_s=_PAGE_TIMEOUT_S)
        return seen.kind is Kind.TRITON_METRICS

    shown = await at_once(doubtful, is_triton)
    return [address for address in targets if shown.get(address, True)]


def _address(target: Mapping[str, Any]) -> str | None:
    url = urllib.parse.urlsplit(str(target["scrapeUrl"]))
    port = url.port or _DEFAULT_PORTS.get(url.scheme)
    return join_address(url.hostname, port) if url.hostname and port else None


def _looks_like(address: str, target: Mapping[str, Any]) -> bool:
    texts = [target.get("scrapePool", ""), *(target.get("labels") or {}).values()]
    named = any("triton" in str(text).lower() for text in texts)
    return named or split_address(address)[1] == _METRICS_PORT
