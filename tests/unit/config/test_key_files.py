from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import key_files
from config.key_files import key_problems, keys_of
from config.loader import load
from config.models import Config


def _hash(number: int) -> str:
    return f"hmac-sha256:{number:012x}:{'1b' * 16}:{'2c' * 32}"


def _config(folder: Path, *, inline: int | None = None, **files: str) -> Config:
    for name, text in files.items():
        (folder / name).write_text(text)
    written = f"[{{hash: '{_hash(inline)}', not_after: 2027-01-31}}]" if inline else "[]"
    path = folder / "gateway.yaml"
    path.write_text(
        "servers: [{name: a, grpc: h:1}]\n"
        f"tenants:\n  b: {{keys: {written}}}\n  a: {{key_files: [{', '.join(files)}]}}\n"
    )
    return load(path)


def _problems(config: Config) -> list[str]:
    return [problem.message for problem in key_problems(config)]


def test_the_keys_of_a_tenant_are_those_written_here_and_those_in_files(tmp_path):
    text = f"# staging\n\n{_hash(1)}\n{_hash(2)}  2027-01-31T12:00:00Z\n"
    config = _config(tmp_path, inline=3, more=text)
    one, two = keys_of(config.tenants["a"])
    assert (one.id, one.not_after, one.line) == ("000000000001", None, 3)
    assert (two.id, two.not_after) == ("000000000002", datetime(2027, 1, 31, 12, tzinfo=UTC))
    (inline,) = keys_of(config.tenants["b"])
    assert inline.not_after is not None
    assert inline.file == ""
    assert _problems(config) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tgk_000000000000_secret", "not the hash of a key"),
        (f"{_hash(1)} soon", "'soon' is no date"),
        (f"{_hash(1)}\n{_hash(1)}", "the key 000000000001 is there twice"),
        (_hash(3), "the key 000000000003 is there twice"),
    ],
)
def test_a_bad_line_is_told_with_its_file_and_line(tmp_path, line, why):
    (problem,) = _problems(_config(tmp_path, inline=3, more=line))
    number = line.count("\n") + 1
    assert problem.startswith(f"{tmp_path}/more:{number}: {why}")
    assert "tgk_0" not in problem
    assert problem.endswith("- correct the file")


def test_a_file_that_has_gone_or_is_huge_is_told(tmp_path, monkeypatch):
    config = _config(tmp_path, more=_hash(1))
    monkeypatch.setattr(key_files, "_MAX_FILE_BYTES", 10)
    assert "larger than 10 bytes" in _problems(config)[0]
    (tmp_path / "more").unlink()
    assert "No such file" in _problems(config)[0]
