"""A server's trace and log settings over gRPC, in the form of Triton's JSON.

Triton's HTTP front end writes trace settings as text, `trace_level` alone as a list, and log
settings by their type (seen on 2.51).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from gateway.upstream.control import call_method
from gateway.upstream.transport import Upstream, upstream_named

_LISTS = frozenset({"trace_level"})


class SettingsReader:
    """Reads and changes settings; see `gateway.ports.SettingsCalls`."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self._upstreams = upstreams

    async def trace(
        self, server: str, model: str, values: Mapping[str, Sequence[str]], *, timeout_s: float
    ) -> dict[str, Any]:
        """Change trace settings (none: read them) and return all."""
        request = pb.TraceSettingRequest(model_name=model)
        for name, texts in values.items():
            request.settings[name].value.extend(texts)  # an empty list is a setting too
        reply = await call_method(
            upstream_named(self._upstreams, server),
            "TraceSetting",
            request,
            pb.TraceSettingResponse,
            timeout_s=timeout_s,
        )
        return {
            name: list(setting.value) if name in _LISTS else "".join(setting.value)
            for name, setting in sorted(reply.settings.items())
        }

    async def log(
        self, server: str, values: Mapping[str, bool | int | str], *, timeout_s: float
    ) -> dict[str, Any]:
        """Change log settings (none: read them) and return all."""
        request = pb.LogSettingsRequest()
        for name, value in values.items():
            _set(request.settings[name], value)
        reply = await call_method(
            upstream_named(self._upstreams, server),
            "LogSettings",
            request,
            pb.LogSettingsResponse,
            timeout_s=timeout_s,
        )
        chosen = {
            name: (setting, setting.WhichOneof("parameter_choice"))
            for name, setting in sorted(reply.settings.items())
        }
        return {name: getattr(setting, kind) for name, (setting, kind) in chosen.items() if kind}


def _set(setting: Any, value: bool | int | str) -> None:
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, int):
        setting.uint32_param = value
    else:
        setting.string_param = value
