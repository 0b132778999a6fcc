"""The same bytes to Triton's own HTTP port and to the gateway: the answers are the same.

Where they are meant not to be, the case refers to one of `differences.ALL`; a difference that is
gone, or that nobody refers to, fails as well.
"""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.cli.local_triton import LocalTriton
from tests.conformance import (
    control,
    differences,
    framing,
    generate,
    requests,
    restricted,
    routes,
    tensors,
)
from tests.conformance.case import Case
from tests.conformance.comparison import JSON, Reading, mismatches, read
from tests.conformance.raw_http import ask
from tests.gateways import GatewayProcess

CASES = {
    f"{topic} {case.id}": case
    for topic, module in (
        ("tensors", tensors),
        ("requests", requests),
        ("framing", framing),
        ("routes", routes),
        ("generate", generate),
    )
    for case in module.CASES
}
AT_LEAST = 400

parameters = [
    pytest.param(
        case,
        id=name,
        marks=[pytest.mark.xfail(strict=True, reason=f"product: {case.fault}")]
        if case.fault
        else [],
    )
    for name, case in CASES.items()
]


@pytest.mark.parametrize("case", parameters)
def test_the_gateway_answers_like_triton(
    case: Case, triton_a: LocalTriton, triton_b: LocalTriton, real_gateway: GatewayProcess
) -> None:
    server = {"a": triton_a, "b": triton_b}[case.server]
    compare(case, server, real_gateway)


def compare(case: Case, server: LocalTriton, through: GatewayProcess) -> None:
    """Ask both, and check that the answers differ in nothing but what they are meant to."""
    triton = read(ask(server.http_address, *case.pieces))
    gateway = read(ask(through.address, *case.pieces))
    assert server.alive, "the request has ended the server"
    check_form(gateway)
    assert case.field in gateway.text
    found = mismatches(triton, gateway, case.view, error_types=case.error_types)
    seen = f"\n  Triton:  {shown(triton)}\n  gateway: {shown(gateway)}"
    if case.differs is None:
        assert not found, f"not the same {', '.join(sorted(found))}{seen}"
    else:
        assert len(found) == 1, f"{case.differs.name}: stale, or not the only one: {found}{seen}"
        assert case.differs.holds(triton, gateway), f"{case.differs.name}: not so{seen}"


def check_form(gateway: Reading) -> None:
    """Every error of the gateway has Triton's form: one text, labelled as JSON, or one event."""
    if gateway.status >= 400 and isinstance(gateway.document, list):
        assert [list(event) for event in gateway.document] == [["error"]]
    elif gateway.status >= 400 and gateway.document is not None:
        assert list(gateway.document) == ["error"]
        assert gateway.content_type == JSON


def shown(reading: Reading) -> str:
    content = reading.text or f"{reading.document!s:.300} {reading.tail[:40]!r}"
    labels = f"{reading.content_type} {reading.encoding} closes={reading.closes}"
    return f"{reading.status} {content} ({labels})"


def test_every_difference_is_referred_to() -> None:
    referred = {case.differs for case in (*CASES.values(), *control.CASES, *restricted.CASES)}
    assert {
        difference.name for difference in differences.ALL if difference not in referred
    } == set()


def test_errors_that_have_to_name_a_field_are_told_which() -> None:
    for case in CASES.values():
        if case.differs is not None and case.differs.names_field:
            assert case.field, case.id


def test_no_two_cases_are_the_same() -> None:
    sent = Counter((case.pieces, case.error_types) for case in CASES.values())
    twice = {sent for sent, times in sent.items() if times > 1}
    assert not [name for name, case in CASES.items() if (case.pieces, case.error_types) in twice]
    modules = (tensors, requests, framing, routes, generate)
    assert len(CASES) == sum(len(module.CASES) for module in modules)
    assert len(CASES) >= AT_LEAST
