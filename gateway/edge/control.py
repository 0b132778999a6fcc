"""The routes that change servers: load, unload, trace and log settings; and shared memory's no.

A load or unload names its servers in the query (`?server=a&server=b`) or in a header
(`Triton-Gateway-Servers: a, b`), by name or shell pattern; without either it goes to the model's
declared placement. Answers name servers by their configured names only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from gateway.codec.control_request import parse_load, parse_log, parse_trace, parse_unload
from gateway.edge.answers import STATUS, Answer, json_answer
from gateway.edge.routes import Route
from gateway.faults import Fault, Kind, Origin
from gateway.names import UnknownName
from gateway.operations import NoPlacement, Order, Outcome
from gateway.ports import ModelCommands
from gateway.settings import FleetSettings, SettingsDesk, SettingsFailed

SERVERS = "Triton-Gateway-Servers"
"""Request header: the servers a load or unload is for, separated by commas."""
DIFFERING = "Triton-Gateway-Differing"
"""Header of an answer: the servers whose settings are not those in the answer."""
UNANSWERED = "Triton-Gateway-Unanswered"
"""Header of an answer: the servers whose settings are not known."""

_NO_SHARED_MEMORY = (
    "shared memory is not supported through the gateway: it and the servers have no memory in"
    " common with the client; send tensors as JSON or binary data instead"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to change something; `query` is what stands behind the question mark."""

    route: Route
    body: bytes
    headers: Mapping[str, str]
    query: str
    caller: str
    timeout_s: float | None


ControlHandler = Callable[[Asked], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Permissions:
    """What callers of the API listener may change."""

    models: bool
    settings: bool


class ControlRoutes:
    """Handlers of the routes that change servers."""

    def __init__(
        self, models: ModelCommands, settings: SettingsDesk, permissions: Permissions
    ) -> None:
        self._models = models
        self._settings = settings
        self._permissions = permissions

    def handlers(self) -> Mapping[str, ControlHandler]:
        """Return the handler of each route, by route name."""
        return {
            "load": self._load,
            "unload": self._unload,
            "trace_setting": self._trace_setting,
            "update_trace_setting": self._update_trace_setting,
            "logging": self._logging,
            "update_logging": self._update_logging,
            "shared_memory": _shared_memory,
        }

    async def _load(self, asked: Asked) -> Answer:
        self._check_models(asked)
        given = parse_load(asked.body)
        order = Order(
            "load", asked.route.model, _servers(asked), config=given.config, files=given.files
        )
        return await self._carry_out(order, asked)

    async def _unload(self, asked: Asked) -> Answer:
        self._check_models(asked)
        with_dependents = parse_unload(asked.body)
        order = Order("unload", asked.route.model, _servers(asked), with_dependents=with_dependents)
        return await self._carry_out(order, asked)

    def _check_models(self, asked: Asked) -> None:
        """Refuse who may not load and unload: the one place where that is decided."""
        if not (_has_scope(asked) or self._permissions.models):
            raise _forbidden(
                "loading and unloading models is not allowed here (model_control.enabled)"
            )
        if asked.route.in_repository:
            raise Fault.unsupported("'repository_name' specification is not supported")

    def _check_settings(self, asked: Asked) -> None:
        """Refuse who may not change settings: the one place where that is decided."""
        if not (_has_scope(asked) or self._permissions.settings):
            raise _forbidden(
                "changing trace and log settings is not allowed here (server_settings.enabled)"
            )

    async def _carry_out(self, order: Order, asked: Asked) -> Answer:
        what = f"failed to {order.command} '{order.model}'"
        try:
            async with asyncio.timeout(asked.timeout_s):
                report = await self._models.carry_out(order, by=asked.caller)
        except TimeoutError:
            raise Fault.deadline_passed() from None  # the command goes on
        except (UnknownName, NoPlacement) as error:
            raise Fault.invalid(f"{what}: {error}{_how_to_name(asked)}") from None
        if any(outcome.kind for outcome in report.outcomes):
            raise failure(what, report.outcomes)
        return json_answer(report.view)

    async def _trace_setting(self, asked: Asked) -> Answer:
        _has_scope(asked)  # or is refused; where nobody needs it, reading is free
        return _settings_answer(await self._settings.read_trace(asked.route.model))

    async def _update_trace_setting(self, asked: Asked) -> Answer:
        self._check_settings(asked)
        values = parse_trace(asked.body)
        model = asked.route.model
        try:
            found = await self._settings.change_trace(model, values, by=asked.caller)
        except SettingsFailed as failed:
            raise failure("failed to change the trace settings", failed.outcomes) from None
        return _settings_answer(found)

    async def _logging(self, asked: Asked) -> Answer:
        _has_scope(asked)
        return _settings_answer(await self._settings.read_log())

    async def _update_logging(self, asked: Asked) -> Answer:
        self._check_settings(asked)
        values = parse_log(asked.body)
        try:
            found = await self._settings.change_log(values, by=asked.caller)
        except SettingsFailed as failed:
            raise failure("failed to change the log settings", failed.outcomes) from None
        return _settings_answer(found)


def _has_scope(asked: Asked) -> bool:
    """Whether the caller may by its tenant. Raises Fault where that is asked and it may not."""
    return asked.route.access.require_scope("admin")


async def _shared_memory(_: Asked) -> Answer:
    raise Fault.unsupported(_NO_SHARED_MEMORY)


def failure(what: str, outcomes: Sequence[Outcome]) -> Fault:
    """Return the fault of what was not done everywhere: the highest status, and every reason."""
    kinds = [outcome.kind for outcome in outcomes if outcome.kind is not None]
    reasons = "; ".join(f"{each.server}: {each.message}" for each in outcomes if each.kind)
    done = ", ".join(each.server for each in outcomes if not each.kind)
    text = f"{what} on {len(kinds)} of {len(outcomes)} servers: {reasons}"
    return Fault(
        max(kinds, key=STATUS.__getitem__),
        f"{text} (done on: {done})" if done else text,
        origin=Origin.UPSTREAM,
    )


def _servers(asked: Asked) -> tuple[str, ...]:
    try:
        named = parse_qs(asked.query, errors="strict", max_num_fields=1000).get("server", [])
    except ValueError:
        raise Fault.invalid("the query string cannot be read") from None
    named += asked.headers.get(SERVERS, "").split(",")
    return tuple(filter(None, map(str.strip, named)))


def _how_to_name(asked: Asked) -> str:
    if _servers(asked):
        return ""
    return f" - servers are named with ?server=NAME, once or more, or in the header {SERVERS}"


def _settings_answer(found: FleetSettings) -> Answer:
    answer = json_answer(found.document)
    for header, servers in ((DIFFERING, found.differing), (UNANSWERED, found.unanswered)):
        if servers:
            answer.headers[header] = ", ".join(servers)
    return answer


def _forbidden(message: str) -> Fault:
    return Fault(Kind.FORBIDDEN, message, origin=Origin.CLIENT)
