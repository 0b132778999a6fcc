"""What is said of models that ignore what is configured of priority classes."""

from dataclasses import replace

import pytest

from gateway.upstream.findings import Severity
from gateway.upstream.queue_advice import queue_findings
from routing.classes import CLASSES, PriorityClass
from routing.priorities import Priorities
from routing.queueing import ENSEMBLE, Queueing, QueuePolicy

NONE = Queueing()
FLAT = Queueing("dynamic_batching")
THREE = Queueing("dynamic_batching", levels=3)
PATIENT = Queueing("dynamic_batching", levels=3, usual=QueuePolicy(10, may_ask=True))
CLASSED = Priorities(configured=True)
TIMED = replace(CLASSED, classes=tuple(replace(cls, queue_timeout_us=5) for cls in CLASSES))


def said(priorities: Priorities, **queues: Queueing) -> list[tuple[str, str]]:
    found = queue_findings(priorities, {(name, "1"): {"a": q} for name, q in queues.items()})
    return [(finding.code, finding.message) for finding in found]


def test_who_configures_nothing_is_told_nothing() -> None:
    assert said(Priorities(), m=NONE, n=FLAT) == []


def test_models_that_take_note_are_no_finding() -> None:
    assert said(CLASSED, m=THREE, n=Queueing("dynamic_batching", levels=2)) == []
    assert said(TIMED, m=PATIENT) == []
    assert said(TIMED, m=Queueing(ENSEMBLE)) == []  # its steps are models by themselves


def test_models_are_told_together_one_finding_a_reason() -> None:
    one = Queueing("dynamic_batching", levels=1)
    found = said(CLASSED, m=NONE, n=NONE, o=Queueing("sequence_batching"), p=FLAT, q=one, r=THREE)
    told = "priority classes make no difference at the servers:"
    assert found == [
        (
            "priorities-ignored",
            f"models m, n, o: {told} no dynamic batching, so requests are served as they come",
        ),
        (
            "priorities-ignored",
            f"model p: {told} the dynamic batching has no `priority_levels`",
        ),
        ("priorities-ignored", f"model q: {told} the dynamic batching has one level"),
    ]


def test_a_single_class_has_no_order_to_ignore() -> None:
    only = PriorityClass("only", 0)
    assert said(Priorities(classes=(only,), usual=only, configured=True), m=NONE) == []


@pytest.mark.parametrize(
    "policy", [QueuePolicy(), QueuePolicy(timeout_us=9), QueuePolicy(may_ask=True)]
)
def test_timeouts_that_a_model_ignores(policy: QueuePolicy) -> None:
    assert said(TIMED, m=replace(THREE, usual=policy)) == [
        (
            "queue-timeouts-ignored",
            "model m: `queue_timeout_s` makes no difference at the servers: the queue policy has no"
            " `allow_timeout_override`, or a `default_timeout_microseconds` of 0",
        )
    ]


def test_each_level_may_have_a_policy_of_its_own() -> None:
    heeding = QueuePolicy(9, may_ask=True)
    assert said(TIMED, m=replace(THREE, by_level={1: heeding, 2: heeding, 3: heeding})) == []
    assert len(said(TIMED, m=replace(THREE, by_level={1: heeding, 3: heeding}))) == 1
    first = replace(TIMED, classes=(replace(CLASSES[0], queue_timeout_us=5), *CLASSES[1:]))
    assert said(first, m=replace(THREE, by_level={1: heeding})) == []


def test_models_without_batching_ignore_timeouts_too() -> None:
    assert [code for code, _ in said(TIMED, m=NONE)] == [
        "priorities-ignored",
        "queue-timeouts-ignored",
    ]


def test_a_level_that_a_model_does_not_have() -> None:
    levels = {"m": {"critical": 1, "standard": 3, "sheddable": 5}}
    assert said(replace(CLASSED, levels=levels), m=THREE, n=THREE) == [
        (
            "no-such-level",
            "model m: `priority_levels` goes too far: it gives class 'sheddable' the level 5, and"
            " there are 3",
        )
    ]


def test_servers_that_differ_in_levels() -> None:
    queues = {("m", "1"): {"a": THREE, "b": Queueing("dynamic_batching", levels=5)}}
    (finding,) = queue_findings(CLASSED, queues)
    assert finding.severity is Severity.WARNING
    assert finding.message == "model 'm' version 1 has differing priority levels: 3 on a, 5 on b"
    assert list(queue_findings(Priorities(), queues)) == []
