"""What the gateway says of its fleet is what its servers say, put together.

Models that one server holds look as they do there; statistics are added up; the index lists what
any server lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import pytest

from gateway.cli.local_triton import LocalTriton
from tests.conformance.build import document, infer_path, tensor
from tests.conformance.comparison import exact, read
from tests.conformance.raw_http import ask, request
from tests.conftest import LOADS, ON_BOTH, ONLY_ON_A, ONLY_ON_B
from tests.gateways import GatewayProcess

INDEX = "/v2/repository/index"
HELD = [*((model, "a") for model in ON_BOTH + ONLY_ON_A), *((model, "b") for model in ONLY_ON_B)]
Get = Callable[..., Any]


@pytest.fixture
def of(triton_a: LocalTriton, triton_b: LocalTriton, real_gateway: GatewayProcess) -> Get:
    """Give a function that returns the document at a path of `a`, `b` or the `gateway`."""
    addresses = {
        "a": triton_a.http_address,
        "b": triton_b.http_address,
        "gateway": real_gateway.address,
    }

    def answered(server: str, path: str, method: str = "GET", body: bytes = b"") -> Any:
        reading = read(ask(addresses[server], request(method, path, body)))
        assert reading.status == 200, reading.text
        return reading.document

    return answered


def test_the_gateway_introduces_itself_like_a_server(of: Get) -> None:
    triton, gateway = of("a", "/v2"), of("gateway", "/v2")
    assert list(gateway) == list(triton)
    assert gateway["name"] == "triton"
    assert set(gateway["extensions"]) < set(triton["extensions"])
    assert {"binary_tensor_data", "classification", "statistics"} <= set(gateway["extensions"])


@pytest.mark.parametrize(("model", "server"), HELD, ids=[model for model, _ in HELD])
def test_metadata_and_config_are_the_servers(of: Get, model: str, server: str) -> None:
    versions = of(server, f"/v2/models/{model}")["versions"]
    for version in ("", *(f"/versions/{version}" for version in versions)):
        for leaf in ("", "/config"):
            path = f"/v2/models/{model}{version}{leaf}"
            assert exact(of("gateway", path)) == exact(of(server, path)), path


def test_versions_are_ordered_by_number(of: Get) -> None:
    assert of("gateway", "/v2/models/whoami")["versions"] == ["1", "2", "10"]


@pytest.mark.parametrize("path", ["/v2/models/stats", "/v2/models/two_in/stats"])
def test_statistics_are_the_sum(of: Get, path: str) -> None:
    for server, batch in (("a", 1), ("a", 2), ("b", 2), ("b", 3)):
        pair = [tensor(f"INPUT{at}", "INT32", [batch, 16], [1] * 16 * batch) for at in (0, 1)]
        of(server, infer_path("two_in"), "POST", document(*pair))
    expected, found = at_rest(of, path)
    assert found == expected
    (row,) = (row for row in rows(found) if row["name"] == "two_in")
    assert row["inference_count"] >= 8
    assert {f"batch_stats[{size}].compute_infer.count" for size in (1, 2, 3)} <= set(row)


@pytest.mark.parametrize("version", [1, 2, 10])
def test_statistics_of_a_version_are_the_sum(of: Get, version: int) -> None:
    for server in "ab":
        path = infer_path("whoami", str(version))
        of(server, path, "POST", document(tensor("IN", "INT32", [1], [1])))
    expected, found = at_rest(of, f"/v2/models/whoami/versions/{version}/stats")
    assert found == expected
    (row,) = rows(found)
    assert row["version"] == str(version)
    assert row["inference_count"] >= 2


def at_rest(of: Get, path: str) -> tuple[Any, Any]:
    """Return the sum of the servers' statistics and the gateway's, at a moment without change."""
    for _ in range(20):
        before = [of(server, path) for server in "ab"]
        found = of("gateway", path)
        if before == [of(server, path) for server in "ab"]:
            return summed(row for one in before for row in rows(one)), summed(rows(found))
    raise AssertionError("the statistics never come to rest")


def rows(document: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["model_stats"]
    return found


def summed(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add the rows of each model version up, over flat names of what they count."""
    by_version: dict[tuple[str, str], list[dict[str, int]]] = {}
    for row in found:
        by_version.setdefault((row["name"], row["version"]), []).append(dict(flat(row)))
    total = []
    for (name, version), counts in sorted(by_version.items()):
        sums = reduce(combined, counts)
        total.append({"name": name, "version": version, **sums})
    return {"model_stats": total}


def combined(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    total = {name: one.get(name, 0) + other.get(name, 0) for name in one | other}
    return total | {"last_inference": max(one["last_inference"], other["last_inference"])}


def flat(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Name every number by its path; an entry of `batch_stats` by its batch size."""
    match value:
        case dict():
            for key, inner in value.items():
                if key not in ("name", "version", "batch_size"):
                    yield from flat(inner, f"{name}.{key}".lstrip("."))
        case list():
            for entry in value:
                yield from flat(entry, f"{name}[{entry['batch_size']}]")
        case _:
            yield name, value


def test_statistics_have_the_fields_of_triton(of: Get) -> None:
    path = "/v2/models/echo_INT32/stats"
    (triton,), (gateway,) = rows(of("a", path)), rows(of("gateway", path))
    assert set(gateway) == set(triton)
    assert set(gateway["inference_stats"]) == set(triton["inference_stats"])


@pytest.mark.parametrize("path", [INDEX, "/v2/repository/any/index"])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready":false}', b'{"ready":true}'])
def test_the_index_lists_what_any_server_lists(of: Get, path: str, body: bytes) -> None:
    listed = [entry for server in "ab" for entry in of(server, path, "POST", body)]
    versions = [entry for entry in listed if "version" in entry]
    loaded = {entry["name"] for entry in versions}
    others = [entry for entry in listed if entry["name"] not in loaded]
    expected = {tuple(sorted(entry.items())) for entry in versions + others}
    found = [tuple(sorted(entry.items())) for entry in of("gateway", path, "POST", body)]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert loaded == set(LOADS["a"]) | set(LOADS["b"])


def test_the_model_list_says_where_models_are(of: Get) -> None:
    listed = {model["name"]: model for model in of("gateway", "/v2/models")["models"]}
    for model in set(LOADS["a"]) | set(LOADS["b"]):
        holders = [server for server in "ab" if model in LOADS[server]]
        assert all(version["servers"] == holders for version in listed[model]["versions"])
    assert listed["whoami"]["default_version"] == "10"
