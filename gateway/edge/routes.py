"""Request target -> route, the way Triton matches paths.

The raw path is split first and each segment is decoded once, so an encoded slash can never make
another route. No trailing slash, no doubled slash; the query string is ignored.
"""

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gateway.faults import Fault, Kind, Origin

_VERSION_MAX = 2**63 - 1

_FIXED = {
    "/v2": ("GET", "server_metadata"),
    "/v2/health/live": ("GET", "live"),
    "/v2/health/ready": ("GET", "ready"),
    "/v2/models": ("GET", "models"),
    "/v2/models/stats": ("GET", "statistics"),
    "/v2/repository/index": ("POST", "repository_index"),
}
_OF_MODEL = {
    "": ("GET", "model_metadata"),
    "ready": ("GET", "model_ready"),
    "config": ("GET", "model_config"),
    "stats": ("GET", "model_statistics"),
    "infer": ("POST", "infer"),
    "generate": ("POST", "generate"),
    "generate_stream": ("POST", "generate_stream"),
}
_INDEX_OF_REPOSITORY = ("POST", "repository_index")
ROUTES = frozenset(
    route for _, route in (*_FIXED.values(), *_OF_MODEL.values(), _INDEX_OF_REPOSITORY)
)
"""The names of all routes: a closed set, used as a metric label."""


@dataclass(slots=True)
class Route:
    """A matched route; `model` is decoded, `version` None when the path names none."""

    name: str
    model: str = ""
    version: int | None = None


def match(method: str, target: str) -> Route:
    """Return the route of a request line.

    Raises Fault: NOT_FOUND for an unknown path, NOT_ALLOWED for a known one with another method,
    INVALID for a version beyond 64 bits.
    """
    path = _path(target)
    if found := _FIXED.get(path):
        return Route(_allowed(method, found))
    segments = path.split("/")
    if segments[:3] == ["", "v2", "models"]:
        return _match_model(method, segments[3:])
    is_index = len(segments) == 5 and segments[:3] == ["", "v2", "repository"]
    if is_index and segments[3] and segments[4] == "index":
        return Route(_allowed(method, _INDEX_OF_REPOSITORY))
    raise _not_found()


def _match_model(method: str, segments: list[str]) -> Route:
    name, *rest = segments
    version = None
    if rest and rest[0] == "versions":
        if len(rest) < 2:
            raise _not_found()
        version, rest = rest[1], rest[2:]
    leaf = rest[0] if rest else ""
    found = _OF_MODEL.get(leaf)
    if found is None or len(rest) > 1 or (rest and not leaf) or not name:
        raise _not_found()
    number = _version(version) if version is not None else None
    route = _allowed(method, found)
    if number is not None and number > _VERSION_MAX:
        raise Fault.invalid(
            f"failed to get model version from specified version string '{version}'"
        )
    return Route(route, _model_name(name), number)


def _path(target: str) -> str:
    path = target.split("?", 1)[0].split("#", 1)[0]
    if path.startswith("/"):
        return path
    # Absolute form, as sent to a proxy: http://host/path
    _, _, rest = path.partition("://")
    return "/" + rest.partition("/")[2] if rest else path


def _allowed(method: str, found: tuple[str, str]) -> str:
    allowed, name = found
    if method != allowed:
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
