"""The host of a gateway that is one process; see `gateway.ports.Host`. Built by wiring."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.explain import Explainer

NOTHING_TO_ROLL = (
    "this gateway is one process (`workers: 1`), so there is nothing to replace one after the"
    " other - restart the process, or set `workers` to 2 or more"
)


class OneProcess:
    """Everything is here, and always up to date."""

    def __init__(self, registry: CollectorRegistry, explainer: Explainer) -> None:
        self._registry = registry
        self._explainer = explainer

    async def refresh(self) -> None:
        """Do nothing."""

    async def metrics(self) -> bytes:
        """Return the page."""
        return generate_latest(self._registry)

    async def explain_request(self, request_id: str) -> Mapping[str, Any]:
        """Explain a past request."""
        return self._explainer.request(request_id)

    async def explain_model(
        self, model: str, version: int | None, tenant: str | None
    ) -> Mapping[str, Any]:
        """Explain where a request would go now."""
        return self._explainer.model(model, version, tenant)

    def workers(self) -> Mapping[str, Any]:
        """Return that there are none."""
        return {"workers": [], "restart": None}

    def restart(self) -> None:
        """Refuse."""
        raise ValueError(NOTHING_TO_ROLL)
