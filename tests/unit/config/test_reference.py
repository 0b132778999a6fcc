import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from config import reference
from config.loader import load_text
from config.models import Config

_FOLDER = Path(reference.__file__).parent


def test_the_checked_in_files_are_fresh():
    assert (_FOLDER / "REFERENCE.md").read_text(encoding="utf-8") == reference.render()
    assert (_FOLDER / "schema.json").read_text(encoding="utf-8") == reference.json_schema()


def test_the_reference_begins_with_what_everyone_needs_and_it_works():
    text = reference.render()
    minimal = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert minimal
    assert len(minimal[1].splitlines()) == 6
    assert len(load_text(minimal[1], "minimal").servers) == 2
    assert text.index("servers[].name") > text.index(minimal[1])


def test_every_section_and_key_has_a_row():
    text = reference.render()
    headings = re.findall(r"^## `(\w+)`$", text, re.MULTILINE)
    assert headings == list(Config.model_fields)
    for row in (
        "| `servers[].name` | text | required |",
        "| `servers[].channels` | whole number, ≥ 1, ≤ 64 | unset |",
        "| `servers[].tls` | mapping | unset |",
        "| `servers[].tls.ca_file` | file name | unset |",
        "| `servers[].metadata` | mapping of name to secret | `{}` |",
        '| `servers[].cancel_upstream` | `auto`, `always`, `never` | `"auto"` |',
        '| `servers[].serve` | list of text | `["*"]` |',
        "| `servers[].pool` | text | unset |",
        "| `upstream.connect_timeout_s` | number, > 0, ≤ 2,147,483 | `2.0` |",
        "| `discovery[].dns.names` | list of text | required |",
        "| `discovery[].servers` | mapping | as below |",
        "| `discovery[].servers.grpc_port` | whole number, ≥ 1, ≤ 65,535 | `8001` |",
        "| `ops.key` | secret | unset |",
        "| `ops.allow_unauthenticated` | `true`, `false` | `false` |",
        '| `models.<name>.idempotent` | `auto`, `true`, `false` | `"auto"` |',
        "| `models.<name>.policy` | `least_request`, `peak_ewma`, `round_robin` | unset |",
        "| `models.<name>.capacity` | mapping of name to number, > 0 | `{}` |",
        "| `models.<name>.hedging` | mapping | unset |",
        "| `models.<name>.hedging.after_s` | number, > 0, ≤ 2,147,483 | required |",
        "| `breaker.max_ejected_share` | number, ≥ 0, ≤ 1 | `0.5` |",
        "| `steering.state_file` | file name | unset |",
    ):
        assert row in text
    assert "Type: whole number, ≥ 1, ≤ 256 or `auto`. Default: `1`." in text
    assert "ops.key.env" not in text


def test_every_row_of_a_table_has_four_cells():
    rows = [line for line in reference.render().splitlines() if line.startswith("|")]
    assert len(rows) > 95
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


def test_the_schema_says_what_is_required():
    schema = json.loads(reference.json_schema())
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["anyOf"] == [{"required": ["servers"]}, {"required": ["discovery"]}]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Discovery"]["required"] == ["name"]
    assert schema["$defs"]["Server"]["required"] == ["name", "grpc"]
    assert schema["$defs"]["Hedging"]["required"] == ["after_s"]


def test_the_schema_bounds_lists_and_mappings():
    definitions = json.loads(reference.json_schema())["$defs"]
    serve = definitions["Server"]["properties"]["serve"]
    assert (serve["type"], serve["minItems"], serve["default"]) == ("array", 1, ["*"])
    assert re.search(serve["items"]["pattern"], "resnet*")
    assert not re.search(serve["items"]["pattern"], "a/b")
    capacity = definitions["ModelPolicy"]["properties"]["capacity"]
    ((name, number),) = capacity["patternProperties"].items()
    assert re.search(name, "gpu-1")
    assert not re.search(name, "GPU")
    assert number == {"type": "number", "exclusiveMinimum": 0}
    assert capacity["additionalProperties"] is False


def test_check_tells_stale_files_and_writing_freshens_them(tmp_path, capsys):
    assert reference.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out.count("is out of date") == 2
    assert list(tmp_path.iterdir()) == []
    assert reference.main([], tmp_path) == 0
    assert capsys.readouterr().out.count("written") == 2
    assert reference.main(["--check"], tmp_path) == 0
    (tmp_path / "schema.json").write_text("{}")
    assert reference.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == f"{tmp_path / 'schema.json'} is out of date\n"


def test_it_runs_as_a_module(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    monkeypatch.delitem(sys.modules, "config.reference")
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("config.reference", run_name="__main__")
    assert caught.value.code == 0
