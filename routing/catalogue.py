"""Which version answers a request that names none.

Pure arithmetic on counts; `routing.fleet` calls it whenever the set of ready versions changes.
"""

from collections.abc import Mapping

_ROUNDING = 1e-9  # 0.28 * 25 is a little more than 7


def choose_default(
    ready_on: Mapping[int, int], *, holders: int, quorum: float, previous: int | None
) -> int | None:
    """Return the default version of a model, or None when nothing is ready.

    `ready_on` maps a version to the number of servers that have it ready, `holders` is how many
    servers have any version ready, `quorum` the share of holders a version needs. The highest
    version with a quorum wins. Until there is one the previous default stays as long as it is
    ready anywhere, so that the first server with a new version does not take all the traffic;
    failing that, the version most servers have, the higher one of equals.
    """
    ready = {version: count for version, count in ready_on.items() if count > 0}
    if not ready:
        return None
    settled = [version for version, count in ready.items() if count >= quorum * holders - _ROUNDING]
    if settled:
        return max(settled)
    if previous in ready:
        return previous
    return max(ready, key=lambda version: (ready[version], version))
