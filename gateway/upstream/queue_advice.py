"""Whether the models of a fleet take into account what the configuration says of priorities.

Pure: what their schedulers say in, findings out. Called by `survey` on what the command line's
diagnoses say, and by `doctor` on what the gateway already knows.
"""

from collections.abc import Iterator, Mapping

from gateway.names import listed
from gateway.ranking import CLASSES_UNHEEDED, LEVELS_UNHEEDED, TIMEOUTS_UNHEEDED, unheeded
from gateway.upstream.agreement import Version
from gateway.upstream.findings import Finding, one_line, warning
from routing.priorities import Priorities
from routing.queueing import Queueing

_ADVICE = {
    CLASSES_UNHEEDED: (
        "priorities-ignored",
        "write `dynamic_batching { priority_levels: N default_priority_level: M }` into their"
        " config.pbtxt; as they are, classes count in the gateway only",
    ),
    TIMEOUTS_UNHEEDED: (
        "queue-timeouts-ignored",
        "write `default_queue_policy { default_timeout_microseconds: N allow_timeout_override:"
        " true }` into their `dynamic_batching`, with an N above the classes' times",
    ),
    LEVELS_UNHEEDED: (
        "no-such-level",
        "correct `models.*.priority_levels`, or raise the model's own; until then the last level"
        " is used",
    ),
}


def queue_findings(
    priorities: Priorities, queues: Mapping[Version, Mapping[str, Queueing]]
) -> Iterator[Finding]:
    """Yield what models ignore, one finding a reason, and which differ between servers.

    `queues` are given by version and server. Nothing is said where no classes are configured.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for (model, _), by_server in sorted(queues.items()):
        for queueing in by_server.values():
            for what, why in unheeded(priorities, model, queueing):
                found.setdefault((what, why), {})[one_line(model)] = None
    for (what, why), models in found.items():
        code, fix = _ADVICE[what]
        yield warning(code, f"{_models(models)}: {what} {why}", fix)
    if priorities.configured:
        yield from _differing(queues)


def _models(models: Mapping[str, None]) -> str:
    return f"model{'s' if len(models) > 1 else ''} {listed(models)}"


def _differing(queues: Mapping[Version, Mapping[str, Queueing]]) -> Iterator[Finding]:
    for (model, version), by_server in sorted(queues.items()):
        levels = {name: queueing.levels for name, queueing in by_server.items()}
        if len(set(levels.values())) > 1:
            said = listed(f"{count} on {name}" for name, count in levels.items())
            yield warning(
                "different-levels",
                f"model '{one_line(model)}' version {one_line(version)} has differing priority"
                f" levels: {said}",
                "give it the same `priority_levels` everywhere; classes are told by those of one"
                " server",
            )
