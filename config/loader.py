"""From files to a `Config`, or to every reason why not.

Decides in which order problems are told; what is right is decided by the sections, `config.checks`
and `config.yaml_lines`. Called by the command line, at
start and at each reload.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from config.checks import check, some_servers
from config.fields import Source
from config.files import files_of
from config.merge import merge
from config.messages import Complaint, complaints, explain
from config.models import Config
from config.secrets import secrets_in
from config.tree import ConfigError, Loc, Node, Origin, Problem
from config.yaml_lines import MAX_FILE_BYTES, Refused, parse

__all__ = ["ConfigError", "Problem", "judge", "load", "load_text", "missing_secrets"]


def load(path: Path) -> Config:
    """Read a configuration: one YAML file, or all *.yaml and *.yml of a folder in name order.

    Raises ConfigError with every problem found. Relative file names within it count from the
    folder the file is in. Secrets are not looked up: see `missing_secrets`.
    """
    try:
        files = files_of(path)
    except OSError as error:
        raise ConfigError([_unreadable(path, error)]) from None
    if not files:
        message = "the folder holds no *.yaml or *.yml file - put one there"
        raise ConfigError([Problem(str(path), 1, "", message)])
    return _build(files, path.parent if files == [path] else path)


def load_text(text: str, name: str) -> Config:
    """Read a configuration from text; `name` stands for its file in problems."""
    root, problems = _parse(text.encode("utf-8", "surrogatepass"), name)
    return judge([root] if root else [], problems, Path(name).parent)


def missing_secrets(config: Config, environ: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each secret that cannot be revealed now, in file and line order."""
    problems = []
    for loc, secret in secrets_in(config):
        try:
            secret.reveal(environ)
        except ValueError as error:
            nodes, rest = config.origin.root.find(loc)
            problems.append(nodes[-1].problem(str(error), rest))
    return sorted(problems)


def _unreadable(path: Path, error: OSError | ValueError) -> Problem:
    reason = getattr(error, "strerror", None) or "not a possible file name"
    message = f"cannot be read: {reason} - correct the path or its permissions"
    return Problem(str(path), 1, "", message)


def _build(files: list[Path], folder: Path) -> Config:
    roots: list[Node] = []
    problems: list[Problem] = []
    for file in files:
        root, found = _read(file)
        roots += [root] if root else []
        problems += found
    return judge(roots, problems, folder, whole=len(roots) == len(files))


def _read(file: Path) -> tuple[Node | None, list[Problem]]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        return None, [_unreadable(file, error)]
    return _parse(data, str(file))


def _parse(data: bytes, file: str) -> tuple[Node | None, list[Problem]]:
    try:
        return parse(data, file)
    except Refused as refused:
        return None, [refused.problem]


def judge(
    roots: list[Node], problems: list[Problem], folder: Path, *, whole: bool = True
) -> Config:
    """Build a configuration from the trees of its files and the problems found in them.

    `whole` is False when one of the files could not be read. Raises ConfigError.
    """
    if not roots:
        raise ConfigError(problems)
    root, conflicts = merge(roots)
    # What an unreadable file would have said is unknown, so nothing counts as missing.
    root.bad = root.bad or not whole
    config, wrong = _validate(root, folder)
    problems = [*problems, *conflicts, *wrong]
    if whole:
        problems += [*some_servers(root), *check(root, folder)]
    if config is None or problems:
        raise ConfigError(problems)
    return config


def _validate(root: Node, folder: Path) -> tuple[Config | None, list[Problem]]:
    source = Source(folder, Origin(root))
    try:
        return Config.model_validate(root.plain(), context=source), []
    except ValidationError as invalid:
        found = complaints(invalid)
    problems = [problem for wrong in found for problem in _problem(root, wrong)]
    for wrong in found:
        _mark(root, wrong)
    return None, problems


def _problem(root: Node, wrong: Complaint) -> list[Problem]:
    nodes, rest = root.find(wrong.loc)
    if nodes[-1].bad and _said(wrong, nodes[-1], rest):
        return []
    # Pydantic appends `[key]` when a mapping's key, not its value, is wrong.
    return [nodes[-1].problem(explain(wrong), () if rest == ("[key]",) else rest)]


def _said(wrong: Complaint, node: Node, rest: Loc) -> bool:
    """Whether the problem already told about `node` explains this complaint too."""
    if rest:
        return wrong.kind == "missing"
    return node.value is None and wrong.kind != "extra_forbidden"


def _mark(root: Node, wrong: Complaint) -> None:
    """Mark what is wrong; an unknown key may be meant for any key missing beside it."""
    nodes, _ = root.find(wrong.loc)
    nodes[-1].bad = True
    if wrong.kind == "extra_forbidden":
        nodes[-2].bad = True
