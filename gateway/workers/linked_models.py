"""Model control in a worker: the supervisor carries commands out, whichever worker was asked.

So commands for one model follow one another over the whole host. Built by wiring.
"""

from gateway.operations import Order, Report
from gateway.workers.link import Link

SERVICE = "model command"
_LONGEST_S = 86_400.0
"""A command has its own time limits, for each server; this is for an answer that never comes."""


class LinkedModels:
    """See `gateway.ports.ModelCommands`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def carry_out(self, order: Order, *, by: str) -> Report:
        """Have the supervisor carry it out."""
        report: Report = await self._link.ask(SERVICE, order, by, timeout_s=_LONGEST_S)
        return report

    def server_back(self, server: str) -> None:
        """Do nothing: the supervisor sees it, too."""
