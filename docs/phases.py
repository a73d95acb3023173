"""The phases of an IPUJob in docs/ipujob.md: the operator's own table."""

from collections.abc import Iterator
from pathlib import Path

from muster_operator.plan.phase_table import AFTER_EVERY_PHASE, PHASES

PAGE = Path(__file__).parent / "ipujob.md"
BEGIN, END = "<!-- phases: made by `make generate` from the operator's phase table -->", "<!-- end of phases -->"


def files() -> dict[Path, str]:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return {PAGE: f"{head}{BEGIN}\n" + "\n".join(_lines()) + f"\n{END}{rest.partition(END)[2]}"}


def _lines() -> Iterator[str]:
    yield from ("", "| phase | conditions it uses or sets | when | what Muster does |", "|---|---|---|---|")
    for phase in PHASES:
        yield f"| {phase.name} | {phase.condition} | {phase.when} | {phase.action} |"
    yield from ("", "After every phase, in this order:", "", "| addition | what Muster does |", "|---|---|")
    for addition in AFTER_EVERY_PHASE:
        yield f"| {addition.name} | {addition.action} |"
    yield ""
