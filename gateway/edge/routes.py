"""Request target -> route, the way Triton matches paths.

The raw path is split first and each segment is decoded once, so an encoded slash can never make
another route. No trailing slash, no doubled slash; the query string is ignored. Each path belongs
to one of the categories in which Triton restricts its API.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gateway.edge.access import EVERYTHING, Access
from gateway.faults import Fault, Kind, Origin

Permit = Callable[[str], None]
"""Is told the category of a path; raises Fault to refuse it."""

_VERSION_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Path:
    """What there is at a path: Triton's category for it, and the route of each method."""

    category: str
    routes: Mapping[str, str]


def _get(category: str, route: str) -> _Path:
    return _Path(category, {"GET": route})


def _post(category: str, route: str) -> _Path:
    return _Path(category, {"POST": route})


_TRACE = _Path("trace", {"GET": "trace_setting", "POST": "update_trace_setting"})
_INDEX = _post("model-repository", "repository_index")
_NO_SHARING = "shared_memory"

_FIXED = {
    "/v2": _get("metadata", "server_metadata"),
    "/v2/health/live": _get("health", "live"),
    "/v2/health/ready": _get("health", "ready"),
    "/v2/models": _get("metadata", "models"),
    "/v2/models/stats": _get("statistics", "statistics"),
    "/v2/repository/index": _INDEX,
    "/v2/trace/setting": _TRACE,
    "/v2/logging": _Path("logging", {"GET": "logging", "POST": "update_logging"}),
}
_OF_MODEL = {
    "": _get("metadata", "model_metadata"),
    "ready": _get("health", "model_ready"),
    "config": _get("model-config", "model_config"),
    "stats": _get("statistics", "model_statistics"),
    "infer": _post("inference", "infer"),
    "generate": _post("inference", "generate"),
    "generate_stream": _post("inference", "generate_stream"),
}
_OF_MODEL_ONLY = {"trace/setting": _TRACE}
"""What a model has and a version of it has not."""
_OF_REPOSITORY_MODEL = {
    "load": _post("model-repository", "load"),
    "unload": _post("model-repository", "unload"),
}
_OF_SHARED_MEMORY = {
    "status": _get("shared-memory", _NO_SHARING),
    "register": _post("shared-memory", _NO_SHARING),
    "unregister": _post("shared-memory", _NO_SHARING),
}
_TABLES = (_FIXED, _OF_MODEL, _OF_MODEL_ONLY, _OF_REPOSITORY_MODEL, _OF_SHARED_MEMORY)


def _every_path() -> Iterator[_Path]:
    for table in _TABLES:
        yield from table.values()


ROUTES = frozenset(route for path in _every_path() for route in path.routes.values())
"""The names of all routes: a closed set, used as a metric label."""
CATEGORIES = frozenset(path.category for path in _every_path())
"""Triton's names for the parts of its API that can be restricted."""
PUBLIC = frozenset({"live", "ready"})
"""The routes that nobody has to be known for."""


@dataclass(slots=True)
class Route:
    """A matched route; `model` is decoded, `version` None when the path names none.

    `in_repository` is set when the path names a repository, which Triton does not support.
    `access` is what its caller may do.
    """

    name: str
    model: str = ""
    version: int | None = None
    in_repository: bool = False
    access: Access = EVERYTHING


def is_public(method: str, target: str) -> bool:
    """Whether a request line is of a route that nobody has to be known for."""
    try:
        return match(method, target).name in PUBLIC
    except Fault:
        return False


def match(method: str, target: str, permit: Permit | None = None) -> Route:
    """Return the route of a request line.

    Raises Fault, in this order: NOT_FOUND for an unknown path, what `permit` raises for its
    category, NOT_ALLOWED for another method, INVALID for a version beyond 64 bits.
    """
    path = _path(target)
    if found := _FIXED.get(path):
        return Route(_allowed(method, found, permit))
    segments = path.split("/")
    if segments[:2] != ["", "v2"] or len(segments) < 4:
        raise _not_found()
    matcher = _MATCHERS.get(segments[2])
    if matcher is None:
        raise _not_found()
    return matcher(method, segments[3:], permit)


def _match_model(method: str, segments: list[str], permit: Permit | None) -> Route:
    name, *rest = segments
    version = None
    if rest and rest[0] == "versions":
        if len(rest) < 2:
            raise _not_found()
        version, rest = rest[1], rest[2:]
    leaf = "/".join(rest)
    found = _OF_MODEL.get(leaf)
    if found is None and version is None:
        found = _OF_MODEL_ONLY.get(leaf)
    if found is None or (rest and not leaf) or not name:
        raise _not_found()
    number = _version(version) if version is not None else None
    route = _allowed(method, found, permit)
    if number is not None and number > _VERSION_MAX:
        raise Fault.invalid(
            f"failed to get model version from specified version string '{version}'"
        )
    return Route(route, _model_name(name), number)


def _match_repository(method: str, segments: list[str], permit: Permit | None) -> Route:
    match segments:
        case [repository, "index"] if repository:
            return Route(_allowed(method, _INDEX, permit))
        case ["models", name, action] if name and action in _OF_REPOSITORY_MODEL:
            in_repository = False
        case [repository, "models", name, action] if (
            repository and name and action in _OF_REPOSITORY_MODEL
        ):
            in_repository = True
        case _:
            raise _not_found()
    route = _allowed(method, _OF_REPOSITORY_MODEL[action], permit)
    return Route(route, _model_name(name), in_repository=in_repository)


def _match_shared_memory(method: str, segments: list[str], permit: Permit | None) -> Route:
    match segments:
        case [action] | ["region", _, action] if all(segments) and action in _OF_SHARED_MEMORY:
            return Route(_allowed(method, _OF_SHARED_MEMORY[action], permit))
    raise _not_found()


_MATCHERS: Mapping[str, Callable[[str, list[str], Permit | None], Route]] = {
    "models": _match_model,
    "repository": _match_repository,
    "systemsharedmemory": _match_shared_memory,
    "cudasharedmemory": _match_shared_memory,
}
"""By the segment behind `/v2`: what matches the segments behind that."""


def _path(target: str) -> str:
    path = target.split("?", 1)[0].split("#", 1)[0]
    if path.startswith("/"):
        return path
    # Absolute form, as sent to a proxy: http://host/path
    _, _, rest = path.partition("://")
    return "/" + rest.partition("/")[2] if rest else path


def _allowed(method: str, found: _Path, permit: Permit | None) -> str:
    if permit is not None:
        permit(found.category)
    name = found.routes.get(method)
    if name is None:
        raise Fault(Kind.NOT_ALLOWED, "Method Not Allowed", origin=Origin.CLIENT)
    return name


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _not_found()
    return int(text) if len(text) < 100 else _VERSION_MAX + 1


def _model_name(segment: str) -> str:
    try:
        name = unquote_to_bytes(segment).decode()
    except UnicodeError:
        raise _not_found() from None
    if "/" in name or "\0" in name:
        raise _not_found()
    return name


def _not_found() -> Fault:
    return Fault(Kind.NOT_FOUND, "Not Found", origin=Origin.CLIENT)
