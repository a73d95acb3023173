"""Fills a row's templates from what its pattern found. What a log line says is never itself read as a template."""

from functools import cache

from muster_checks.dmesg.catalogue.match import compile_fixed
from muster_checks.dmesg.catalogue.types import PatternRow

PART_CHARACTERS = 96  # of one group in a component's name


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
    """``{name}`` replaced by its group, a missing one by nothing."""
    return "".join(text + groups.get(name, "") for text, name in _pieces(template)).strip()


def clean_part(text: str) -> str:
    """A part of a component's name: printable, without blanks, bounded."""
    shown = "".join(c if c.isprintable() and not c.isspace() else "_" for c in text.strip()[:PART_CHARACTERS])
    return shown.strip("/")


def bits_fit(row: PatternRow, groups: dict[str, str]) -> bool:
    """Are the bits of the group ``status`` as the row wants them? True for a row that wants none."""
    if not (row.status_set or row.status_clear):
        return True
    try:
        status = int(groups.get("status", ""), 16)
    except ValueError:
        return False
    return status & row.status_set == row.status_set and not status & row.status_clear
