from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from config import fields
from config.fields import same_address, split_address


def _refusal(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value, strict=True)
    return caught.value.errors()[0]["msg"].removeprefix("Value error, ")


@pytest.mark.parametrize(
    "address",
    ["10.0.0.5:8001", "triton:1", "a.b-c.example.:65535", "[::1]:8001", "A_1:80", "[fe80::1]:9"],
)
def test_good_addresses_stay_as_they_are(address):
    assert TypeAdapter(fields.Address).validate_python(address) == address


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("http://10.0.0.5:8001", "write host:port without the scheme"),
        ("10.0.0.5:8001/v2", "write host:port without a path"),
        ("10.0.0.5", "write host:port, for example"),
        (":8001", "write host:port, for example"),
        ("host:", "write host:port, for example"),
        ("", "write host:port, for example"),
        ("::1:8001", "put an IPv6 address in brackets"),
        ("a:b:8001", "put an IPv6 address in brackets"),
        ("[::g]:8001", "write an IPv6 address between the brackets"),
        ("[10.0.0.5]:8001", "write an IPv6 address between the brackets"),
        ("10.0.0.256:8001", "write four numbers from 0 to 255"),
        ("10.0.5:8001", "write four numbers from 0 to 255"),
        ("a..b:8001", "write an IP address or a DNS name"),
        ("-a:8001", "write an IP address or a DNS name"),
        ("a b:8001", "write an IP address or a DNS name"),
        ("user@host:8001", "write an IP address or a DNS name"),
        ("é:8001", "write an IP address or a DNS name"),
        ("a" * 64 + ":8001", "write an IP address or a DNS name"),
        ("host:0", "write a port from 1 to 65535"),
        ("host:65536", "write a port from 1 to 65535"),
        ("host:+80", "write a port from 1 to 65535"),
        ("host:٨٠", "write a port from 1 to 65535"),
        ("host:80\n", "write a port from 1 to 65535"),
    ],
)
def test_a_bad_address_is_refused_with_its_own_advice(address, advice):
    message = _refusal(fields.Address, address)
    assert repr(address) in message or repr(address.rpartition(":")[0]) in message
    assert advice in message


def test_addresses_split_into_host_and_port():
    assert split_address("10.0.0.5:8001") == ("10.0.0.5", 8001)
    assert split_address("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Triton:1", "triton.:1"), ("[::1]:1", "[0:0::1]:1"), ("10.0.0.5:1", "10.0.0.5:1")],
)
def test_two_spellings_of_one_address_are_the_same(one, other):
    assert same_address(one) == same_address(other)
    assert same_address(one) != same_address(other[:-1] + "2")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "localhost", "gw.example"])
def test_listeners_take_bare_hosts(host):
    assert TypeAdapter(fields.Host).validate_python(host) == host


@pytest.mark.parametrize("host", ["", "[::1]", "host:80", "1.2.3"])
def test_listeners_refuse_what_is_no_host(host):
    assert repr(host) in _refusal(fields.Host, host)


@pytest.mark.parametrize("name", ["a", "0", "gpu-1", "a.b_c", "a" * 63])
def test_good_server_names(name):
    assert TypeAdapter(fields.ServerName).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a b", "a/b", "é", "a" * 64, "a\n"])
def test_bad_server_names(name):
    assert "use at most 63 of a-z 0-9" in _refusal(fields.ServerName, name)


@pytest.mark.parametrize("name", ["", "a/b", "a\0"])
def test_names_no_model_can_have(name):
    assert "without a slash" in _refusal(fields.ModelName, name)
    assert TypeAdapter(fields.ModelName).validate_python("Any name.v1") == "Any name.v1"


def test_relative_files_count_from_the_folder_of_the_configuration():
    file = TypeAdapter(fields.FileName)
    source = fields.Source(Path("/etc/gw"))
    assert file.validate_python("certs/a.pem", context=source) == Path("/etc/gw/certs/a.pem")
    assert file.validate_python("/a.pem", context=source) == Path("/a.pem")
    assert file.validate_python("a.pem") == Path("a.pem")
    assert file.validate_python(Path("a.pem"), context=source) == Path("a.pem")
    assert "the file name is empty" in _refusal(fields.FileName, "")


def test_durations_are_positive_finite_and_fit_into_grpc():
    seconds = TypeAdapter(fields.Seconds, config=None)
    assert seconds.validate_python(2, strict=True) == 2.0
    for value in (0, -1, 2_147_484, True, "1"):
        _refusal(fields.Seconds, value)
    assert TypeAdapter(fields.SecondsOrZero).validate_python(0) == 0


@pytest.mark.parametrize("value", [1, 0, 1.0])
def test_numbers_are_not_taken_for_true_or_false(value):
    assert "write auto, true or false" in _refusal(fields.Auto, value)


@pytest.mark.parametrize("value", ["auto", True, False])
def test_auto_or_a_boolean(value):
    assert TypeAdapter(fields.Auto).validate_python(value) is value


@pytest.mark.parametrize("value", ["auto", 1, 256])
def test_a_number_of_workers(value):
    assert TypeAdapter(fields.Workers).validate_python(value) == value


@pytest.mark.parametrize("value", ["2", "many", 0, -1, 257, 1.0, 2.5, True, None])
def test_what_is_no_number_of_workers(value):
    assert "write auto, or a whole number from 1 to 256" in _refusal(fields.Workers, value)
