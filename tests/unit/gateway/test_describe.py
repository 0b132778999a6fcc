"""What a model's configuration says of its sequences, queues, and of how much can be under way."""

import pytest
from tritonclient.grpc import model_config_pb2

from gateway.upstream.describe import (
    Description,
    ModelBook,
    model_spec,
    queueing_of,
    sequence_idle_s,
    shape_of,
)
from routing.admission.limits import Shape
from routing.fleet import ModelVersion
from routing.queueing import NO_QUEUES, Queueing, QueuePolicy
from tests.fakes.model import model_config

KEY = ModelVersion("m", 1)


@pytest.mark.parametrize(
    ("batching", "idle_s"),
    [
        (None, None),
        (model_config_pb2.ModelSequenceBatching(), 1.0),  # Triton's default
        (model_config_pb2.ModelSequenceBatching(max_sequence_idle_microseconds=2_500_000), 2.5),
    ],
)
def test_the_idle_time_of_a_model(batching: object, idle_s: float | None) -> None:
    config = model_config("m", sequence_batching=batching)
    assert sequence_idle_s(config) == idle_s
    assert model_spec(KEY, config).sequence is (idle_s is not None)


def test_each_server_states_its_own() -> None:
    book = ModelBook()
    spec = model_spec(KEY, model_config("m"))
    for server, idle_s in (("a", 1.0), ("b", 2.0)):
        book.learn(server, KEY, Description(spec, {}, server.encode(), idle_s))
    assert book.sequence_idle_s("a", KEY) == 1.0
    assert book.sequence_idle_s("b", KEY) == 2.0
    assert book.sequence_idle_s("c", KEY) is None
    book.keep_only("b", frozenset())
    assert book.sequence_idle_s("b", KEY) is None


def test_the_queues_of_a_model() -> None:
    batching = model_config_pb2.ModelDynamicBatching(priority_levels=3, default_priority_level=2)
    batching.default_queue_policy.default_timeout_microseconds = 7
    batching.priority_queue_policy[1].allow_timeout_override = True
    said = queueing_of(model_config("m", dynamic_batching=batching))
    assert said == Queueing(
        "dynamic_batching", 3, QueuePolicy(7, may_ask=False), {1: QueuePolicy(0, may_ask=True)}
    )
    assert queueing_of(model_config("m")) == NO_QUEUES
    sequences = model_config_pb2.ModelSequenceBatching()
    assert queueing_of(model_config("m", sequence_batching=sequences)).levels == 0


def test_queues_are_those_of_the_server() -> None:
    book = ModelBook()
    spec = model_spec(KEY, model_config("m"))
    book.learn("a", KEY, Description(spec, {}, b"a", queueing=Queueing(levels=2)))
    found = book.queueing("a", KEY)
    assert found is not None
    assert found.levels == 2
    assert book.queueing("b", KEY) is None


KIND = model_config_pb2.ModelInstanceGroup.Kind.Value


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({}, Shape(instances=1)),
        ({"instance_group": [{"count": 3}, {"count": 2}]}, Shape(instances=5)),
        ({"instance_group": [{"kind": KIND("KIND_AUTO")}]}, Shape(instances=1)),
        (
            {"instance_group": [{"count": 2, "kind": KIND("KIND_GPU"), "gpus": [0, 1, 3]}]},
            Shape(instances=6),
        ),
        ({"instance_group": [{"count": 2, "kind": KIND("KIND_GPU")}]}, Shape(instances=2)),
        (
            {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": 1500}},
            Shape(max_batch=8, batch_delay_s=0.0015),
        ),
        ({"model_transaction_policy": {"decoupled": True}}, Shape(decoupled=True)),
    ],
)
def test_how_much_can_be_under_way(fields: dict[str, object], shape: Shape) -> None:
    assert shape_of(model_config("m", **fields)) == shape


def test_the_book_knows_the_shape_of_what_is_ready() -> None:
    book = ModelBook()
    spec = model_spec(KEY, model_config("m"))
    book.learn("a", KEY, Description(spec, {}, b"a", shape=Shape(3)))
    assert (book.shape("a", KEY), book.shape("b", KEY)) == (Shape(3), None)
