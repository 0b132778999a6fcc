import os
from pathlib import Path

import pytest

from config.files import files_of, fingerprint


def test_a_file_is_itself_and_a_folder_its_visible_yaml_files(tmp_path: Path):
    for name in ("b.yaml", "a.yml", ".c.yaml", "notes.txt"):
        (tmp_path / name).write_text("")
    assert files_of(tmp_path) == [tmp_path / "a.yml", tmp_path / "b.yaml"]
    assert files_of(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]


def test_nothing_happened(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("x")
    assert fingerprint(tmp_path) == fingerprint(tmp_path) != ()


def rewrite(file: Path) -> None:
    file.write_text("longer")


def touch(file: Path) -> None:
    os.utime(file, ns=(1, 1))


def replace(file: Path) -> None:
    """By a file that looks the same but for its inode."""
    before = file.stat()
    new = file.with_name("new")
    new.write_text("x")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(file)


def add(file: Path) -> None:
    file.with_name("b.yaml").write_text("x")


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("change", [rewrite, touch, replace, add, remove])
def test_every_change_shows(tmp_path: Path, change):
    file = tmp_path / "a.yaml"
    file.write_text("x")
    before = fingerprint(tmp_path)
    change(file)
    assert fingerprint(tmp_path) != before


def test_a_link_counts_as_what_it_points_to(tmp_path: Path):
    for name in "12":
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.yaml").write_text("x")
    (tmp_path / "now").symlink_to("1")
    (tmp_path / "f.yaml").symlink_to("now/f.yaml")
    before = fingerprint(tmp_path)
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(tmp_path / "now")
    assert fingerprint(tmp_path) != before


@pytest.mark.parametrize("name", ["gone.yaml", "with\0nul"])
def test_what_is_not_there_is_nothing(tmp_path: Path, name: str):
    assert fingerprint(tmp_path / name) == ()
