"""What a model's configuration says of its sequences."""

import pytest
from tritonclient.grpc import model_config_pb2

from gateway.upstream.describe import Description, ModelBook, model_spec, sequence_idle_s
from routing.fleet import ModelVersion
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
