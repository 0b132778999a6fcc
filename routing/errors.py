"""Why routing could not choose. Texts are Triton's, since callers match on them."""


class RoutingError(Exception):
    """The base of everything routing refuses with; the message is meant for the caller."""


class NoSuchModel(RoutingError):
    """No server of the fleet knows this model, or this version of it."""

    def __init__(self, model: str, version: int | None, reason: str) -> None:
        which = f" version {version}" if version is not None else ""
        super().__init__(f"Request for unknown model: '{model}'{which} {reason}")


class NoReadyEndpoint(RoutingError):
    """The model and version exist, but no server can take the request at this moment.

    `saturated` is True when servers hold it and all of them are at a bound of the gateway.
    """

    def __init__(self, message: str, *, saturated: bool = False) -> None:
        super().__init__(message)
        self.saturated = saturated


class NoRoom(Exception):
    """Servers could take the request, and each has as much under way as it is given."""


class PinnedServerGone(RoutingError):
    """The one server that has the state of a sequence does not serve its version any more."""

    def __init__(self) -> None:
        super().__init__("the server that has the state of the sequence does not serve it any more")
