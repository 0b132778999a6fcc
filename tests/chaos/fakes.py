"""Scripted Tritons with a real one's bottlenecks: a few slots, and one thread for control calls."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import GatewayProcess, configuration

VERSION = "2.58.0"


class NarrowTriton(FakeTriton):
    """A fake with `slots` inferences at a time and all other calls one after the other."""

    def __init__(self, *models: FakeModel, server_id: str, slots: int = 1000) -> None:
        super().__init__(*models, server_id=server_id, version=VERSION)
        self.asked: Counter[str] = Counter()
        """Inference requests that arrived, by model."""
        self._slots = asyncio.Semaphore(slots)
        self._control = asyncio.Lock()

    async def _enter(self, method: str, context: Any) -> None:
        if method == "ModelInfer":
            await super()._enter(method, context)
            return
        async with self._control:
            await super()._enter(method, context)

    async def _infer(self, request: Any, context: Any) -> Any:
        self.asked[request.model_name] += 1
        async with self._slots:
            return await super()._infer(request, context)


def narrow(name: str, *models: str, slots: int = 1000) -> NarrowTriton:
    """Make a server of echoing models."""
    echoing = (FakeModel(model_config(model)) for model in models or ("echo",))
    return NarrowTriton(*echoing, server_id=name, slots=slots)


@contextlib.asynccontextmanager
async def gateway_before(
    fakes: Sequence[NarrowTriton], folder: Path, **sections: Any
) -> AsyncIterator[GatewayProcess]:
    """Run the fakes and a gateway process in front of them; servers are named by their ids."""
    async with contextlib.AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(fake)
        config = configuration({fake.server_id: fake.address for fake in fakes}, **sections)
        gateway = GatewayProcess(config, folder)
        stack.push_async_callback(asyncio.to_thread, gateway.stop)
        await asyncio.to_thread(gateway.start)
        yield gateway
