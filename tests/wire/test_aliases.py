"""Aliases over HTTP: arms by weight, answers that say what ran, questions to the heaviest arm."""

from collections import Counter

import pytest

from tests.clients import Reply, request
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.serving import Serving, serving

ARMS = [
    {"model": "echo", "version": 1, "weight": 3},
    {"model": "echo", "version": 2, "weight": 1},
]


@pytest.fixture
async def fake():
    states = {"1": "READY", "2": "READY"}
    async with FakeTriton(FakeModel(model_config("echo"), states)) as triton:
        yield triton


def versions(gateway: Serving) -> Counter[str]:
    return Counter(event["version"] for event in gateway.events("request") if "alias" in event)


async def test_requests_are_shared_out_by_weight_and_say_what_ran(fake: FakeTriton) -> None:
    async with serving({"a": fake}, aliases={"classifier": {"arms": ARMS}}) as gateway:
        answers = [await gateway.infer("classifier") for _ in range(400)]
        ran = Counter((a.json["model_name"], a.json["model_version"]) for a in answers)
        assert set(ran) == {("echo", "1"), ("echo", "2")}
        assert 40 < ran["echo", "2"] < 160  # 100 expected, 8.7 the standard deviation
        assert versions(gateway) == Counter({"1": ran["echo", "1"], "2": ran["echo", "2"]})
        page = (await gateway.ops("/metrics")).body.decode()
        counted = f'{{alias="classifier",model="echo",version="2"}} {ran["echo", "2"]}.0'
        assert f"triton_gateway_alias_requests_total{counted}" in page


async def test_a_user_stays_with_a_version(fake: FakeTriton) -> None:
    alias = {"arms": ARMS, "sticky": "header", "header": "X-User-Id"}
    async with serving({"a": fake}, aliases={"classifier": alias}) as gateway:
        for user in range(20):
            ran = {
                (await gateway.infer("classifier", X_User_Id=str(user))).json["model_version"]
                for _ in range(5)
            }
            assert len(ran) == 1
        assert len(versions(gateway)) == 2


async def test_no_weight_is_no_request_even_when_the_others_fail(fake: FakeTriton) -> None:
    arms = [{"model": "gone", "weight": 1}, {"model": "echo", "weight": 0}]
    async with serving({"a": fake}, aliases={"classifier": {"arms": arms}}) as gateway:
        assert [(await gateway.infer("classifier")).status for _ in range(20)] == [404] * 20
        assert fake.infer_finished == 0


async def test_the_heaviest_arm_answers_for_the_alias(fake: FakeTriton) -> None:
    arms = [{**ARMS[0], "weight": 1}, {**ARMS[1], "weight": 3}]
    async with serving({"a": fake}, aliases={"classifier": {"arms": arms}}) as gateway:

        async def ask(path: str) -> Reply:
            return await gateway.ask(request("GET", path))

        metadata = (await ask("/v2/models/classifier")).json
        assert (metadata["name"], metadata["versions"]) == ("echo", ["2"])
        assert (await ask("/v2/models/classifier/config")).json["name"] == "echo"
        assert (await ask("/v2/models/classifier/ready")).status == 200
        rows = (await ask("/v2/models/classifier/stats")).json["model_stats"]
        assert [(row["name"], row["version"]) for row in rows] == [("echo", "2")]
        assert (await ask("/v2/models")).json["aliases"] == [
            {
                "name": "classifier",
                "arms": [
                    {"model": "echo", "version": "1", "weight": 1.0},
                    {"model": "echo", "version": "2", "weight": 3.0},
                ],
            }
        ]


async def test_an_alias_may_have_its_models_name_and_a_version_passes_it_by(
    fake: FakeTriton,
) -> None:
    arms = [{"model": "echo", "version": 1, "weight": 1}]
    async with serving({"a": fake}, aliases={"echo": {"arms": arms}}) as gateway:
        assert (await gateway.infer("echo")).json["model_version"] == "1"
        assert (await gateway.infer("echo/versions/2")).json["model_version"] == "2"
