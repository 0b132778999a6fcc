"""Whether a server's unary calls may be cancelled is decided by the version it reports."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.transport import Upstream, version_tuple


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
