"""Triton's messages as its HTTP front end writes them."""

from tritonclient.grpc import model_config_pb2 as config_pb
from tritonclient.grpc import service_pb2 as pb

from gateway.upstream.proto_json import to_json_object


def test_names_stay_and_defaults_are_printed() -> None:
    config = to_json_object(config_pb.ModelConfig(name="m"))
    assert (config["name"], config["max_batch_size"], config["default_model_filename"]) == (
        "m",
        0,
        "",
    )
    assert config["input"] == []
    assert "version_policy" not in config  # a message that is not there


def test_64_bit_numbers_are_numbers_at_any_depth() -> None:
    config = config_pb.ModelConfig(
        input=[config_pb.ModelInput(name="IN", data_type="TYPE_FP32", dims=[-1, 2**40])],
        version_policy=config_pb.ModelVersionPolicy(
            specific=config_pb.ModelVersionPolicy.Specific(versions=[1, 2**62])
        ),
        dynamic_batching=config_pb.ModelDynamicBatching(
            max_queue_delay_microseconds=2**63, priority_levels=3
        ),
    )
    config.input[0].reshape.shape.append(-1)
    found = to_json_object(config)
    assert found["input"][0]["dims"] == [-1, 2**40]
    assert found["input"][0]["data_type"] == "TYPE_FP32"
    assert found["input"][0]["reshape"] == {"shape": [-1]}
    assert found["version_policy"] == {"specific": {"versions": [1, 2**62]}}
    assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 2**63
    assert found["dynamic_batching"]["priority_levels"] == 3


def test_the_keys_of_maps_stay_text_and_their_values_become_numbers() -> None:
    config = config_pb.ModelConfig()
    policy = config.dynamic_batching.priority_queue_policy[2]
    policy.default_timeout_microseconds = 100
    config.parameters["k"].string_value = "v"
    config.cc_model_filenames["8.0"] = "f"
    found = to_json_object(config)
    policies = found["dynamic_batching"]["priority_queue_policy"]
    assert policies["2"]["default_timeout_microseconds"] == 100
    assert found["parameters"] == {"k": {"string_value": "v"}}
    assert found["cc_model_filenames"] == {"8.0": "f"}


def test_statistics_are_all_numbers() -> None:
    row = pb.ModelStatistics(name="m", version="1", last_inference=2**50, inference_count=7)
    row.inference_stats.success.count = 7
    row.inference_stats.success.ns = 2**45
    row.response_stats["0"].success.count = 3
    row.batch_stats.add(batch_size=4).compute_infer.ns = 9
    found = to_json_object(row)
    assert (found["version"], found["last_inference"], found["inference_count"]) == (
        "1",
        2**50,
        7,
    )
    assert found["inference_stats"]["success"] == {"count": 7, "ns": 2**45}
    assert found["response_stats"]["0"]["success"] == {"count": 3, "ns": 0}
    assert found["batch_stats"][0]["batch_size"] == 4
    assert found["batch_stats"][0]["compute_infer"] == {"count": 0, "ns": 9}
    assert found["memory_usage"] == []
