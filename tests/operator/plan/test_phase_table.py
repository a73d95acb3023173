"""The page about IPUJobs shows the phases that the operator goes by."""

from pathlib import Path

from muster_operator.plan.phase_table import AFTER_EVERY_PHASE, PHASES

PAGE = Path(__file__).parents[3] / "docs" / "ipujob.md"


def test_the_page_has_the_same_phases_in_the_same_order_and_says_the_same_of_them() -> None:
    section = PAGE.read_text().partition("## What happens to a job, phase by phase\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "what Muster does" not in line]
    assert rows == [
        *(f"| {each.name} | {each.condition} | {each.when} | {each.action} |" for each in PHASES),
        *(f"| {each.name} | {each.action} |" for each in AFTER_EVERY_PHASE),
    ]
