"""What a server's version says about cancelling, and calls to servers that have just left."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.types import InferCall
from gateway.faults import Fault, Kind, Replay
from gateway.upstream.control import StatisticsReader
from gateway.upstream.transport import GrpcTransport, Upstream, version_tuple


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.51.0", (2, 51)),
        ("2.57.0", (2, 57)),
        ("2.58", (2, 58)),
        ("10.2.3", (10, 2)),
        ("2.70.0dev", (2, 70)),
        ("3", (3,)),
        ("", ()),
        ("2.x.0", ()),
        ("2.58dev", ()),
        ("v2.58.0", ()),
        ("2.-58", ()),
        ("nightly", ()),
    ],
)
def test_versions_compare_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_tuple(text) == numbers


@given(st.text())
def test_any_text_is_a_version(text: str) -> None:
    assert all(number >= 0 for number in version_tuple(text))


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("2.39.0", False),
        ("2.56.9", False),
        ("2.57.0", True),
        ("2.58.0", True),
        ("2.100.0", True),
        ("3.0.0", True),
        ("", False),  # not asked yet
        ("custom build", False),
    ],
)
def test_the_operators_word_counts_more_than_the_version(version: str, safe: bool) -> None:
    def cancel_safe(cancel: str) -> bool:
        upstream = Upstream("a", cast(Any, None), cancel=cancel, triton_version=version)
        return upstream.cancel_safe

    assert cancel_safe("auto") is safe
    assert cancel_safe("always") is True
    assert cancel_safe("never") is False


def test_a_call_to_a_server_that_has_just_left_may_go_to_another_one() -> None:
    transport = GrpcTransport({}, detached_max_s=1.0)
    with pytest.raises(Fault) as caught:
        transport.start("gone", cast(InferCall, None), timeout_s=1.0)
    assert (caught.value.kind, caught.value.replay) == (Kind.UNREACHABLE, Replay.SAFE)
    assert "gone" not in caught.value.message
    assert transport.cancels("gone") is False


async def test_statistics_of_a_server_that_has_just_left_are_a_fault() -> None:
    with pytest.raises(Fault):
        await StatisticsReader({}).statistics("gone", "", "", timeout_s=1.0)
