"""Finds a section's class, and a key's type, from a path: what messages and reference ask for.

Reads the models' own annotations, so that it cannot disagree with them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from config.fields import Section
from config.models import Config
from config.tree import Loc


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section a type holds: itself, or within a list, a mapping or an optional."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for argument in get_args(annotation):
        found = section_of(argument)
        if found:
            return found
    return None


def section_at(loc: Loc) -> type[Section]:
    """Return the section that the keys below `loc` belong to."""
    section: type[Section] = Config
    named = False  # whether the next part is a name the operator chose, not a key
    for part in loc:
        if isinstance(part, str) and part in section.model_fields and not named:
            annotation = section.model_fields[part].annotation
            named = get_origin(annotation) is Mapping
            section = section_of(annotation) or section
        else:
            named = False
    return section


def choices_at(loc: Loc) -> list[str]:
    """Return what may be written at `loc`: a `Literal`, optional or not, or an item of a list."""
    while isinstance(loc[-1], int):
        loc = loc[:-1]
    return words(_choices(section_at(loc[:-1]).model_fields[str(loc[-1])].annotation))


def _choices(annotation: Any) -> Iterator[object]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for argument in get_args(annotation):
            yield from _choices(argument)


def words(choices: Iterable[object]) -> list[str]:
    """Return choices as they are written in YAML."""
    return [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
