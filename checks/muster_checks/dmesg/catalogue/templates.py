"""Fills a row's templates with the groups of its pattern. Text from a log line is never parsed as a template."""

from functools import cache

from muster_checks.dmesg.catalogue.match import compile_fixed
from muster_checks.dmesg.catalogue.types import PatternRow

PART_CHARACTERS = 96  # limit of one group in a component name


@cache
def _pieces(template: str) -> tuple[tuple[str, str], ...]:
    """(text, name of the group after it) in order; the last name is empty."""
    pieces: list[tuple[str, str]] = []
    rest = template
    for name in template_names(template):
        text, rest = rest.split(f"{{{name}}}", 1)
        pieces.append((text, name))
    return (*pieces, (rest, ""))


@cache
def template_names(template: str) -> tuple[str, ...]:
    """Names of the groups that ``template`` needs, in order."""
    return tuple(found["name"] for found in compile_fixed(r"\{(?P<name>\w+)\}").find_all(template.encode(), 100))


def fill_template(template: str, groups: dict[str, str]) -> str:
    """``template`` with each ``{name}`` replaced by its group; a missing group is empty."""
    return "".join(text + groups.get(name, "") for text, name in _pieces(template)).strip()


def clean_part(text: str) -> str:
    """``text`` as a part of a component name: printable, without spaces, bounded in length."""
    shown = "".join(c if c.isprintable() and not c.isspace() else "_" for c in text.strip()[:PART_CHARACTERS])
    return shown.strip("/")


def bits_fit(row: PatternRow, groups: dict[str, str]) -> bool:
    """Whether the bits of the group ``status`` match the row. True for a row without such a condition."""
    if not (row.status_set or row.status_clear):
        return True
    try:
        status = int(groups.get("status", ""), 16)
    except ValueError:
        return False
    return status & row.status_set == row.status_set and not status & row.status_clear
