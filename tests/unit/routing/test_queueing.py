"""Which timeouts of requests a queue takes into account."""

import pytest

from routing.queueing import Queueing, QueuePolicy


@pytest.mark.parametrize(
    ("policy", "heeds"),
    [
        (QueuePolicy(), False),
        (QueuePolicy(timeout_us=5), False),
        (QueuePolicy(may_ask=True), False),  # Triton: a default of 0 is the end of it
        (QueuePolicy(timeout_us=5, may_ask=True), True),
    ],
)
def test_a_request_may_ask_for_less_than_there_is(policy, heeds):
    assert Queueing(usual=policy).heeds_timeouts(0) is heeds


def test_a_level_may_have_a_policy_of_its_own():
    queueing = Queueing(levels=3, by_level={2: QueuePolicy(5, may_ask=True)})
    assert [queueing.heeds_timeouts(level) for level in (1, 2, 3)] == [False, True, False]
