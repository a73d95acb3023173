"""`make generate` restores generated files that were changed or deleted."""

from pathlib import Path

from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT

MADE = (
    "docs/checks.md",
    "docs/settings.md",
    "helm/muster/files/dashboards/muster-fleet.json",
    "helm/muster/crds/graphcore.ai_ipujobs.yaml",
    "helm/muster/values.schema.json",
)


def test_reference_pages_dashboards_and_the_crd_are_generated_from_the_code(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "muster")
    for name in MADE[:2]:
        (folder / name).write_text((folder / name).read_text().replace("|", "!"))
    for name in MADE[2:]:
        (folder / name).unlink()
    runner = CommandRunner(commands_of_test(__file__), {}, {}, folder)
    runner.type("make generate")
    assert not runner.left
    for name in MADE:
        assert (folder / name).read_text() == (ROOT / name).read_text(), name
