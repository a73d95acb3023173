"""docs/cookbook.md: each recipe is a policy without a doubt that it does not tell, and does to findings and fleets what
stands below it."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from muster_checks.base.vocabulary import Verdict
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.registry import load_registry
from muster_cli.__main__ import main
from muster_cli.report.policies.rows import policy_rows
from muster_cli.report.policies.warnings import find_warnings
from muster_tainter.faults.messages import format_taint
from muster_tainter.faults.record.node_record import as_our_taint
from muster_tainter.policy.file import default_policy_text, parse_policy
from muster_tainter.policy.rules import Policy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cookbook.md"
CHECKS = load_registry(plug_ins=[])
OF_ONES_OWN = "uptimemonitor"
BEGINS = datetime(2027, 1, 15, 7, tzinfo=UTC)
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
_FLEET = re.compile(
    r"^- (\d+) of (\d+) nodes, two to a rack, lose a GPU within (one|\d+) minutes?: (\d+) are tainted\.$", re.MULTILINE
)
_FINDING = re.compile(r"^\| (\w+) (\S+) (WARN|FAIL) \| (.+) \|$", re.MULTILINE)


class Recipe(NamedTuple):
    before: str
    piece: Any
    below: str

    @property
    def title(self) -> str:
        return self.before.partition("\n")[0]

    @property
    def text(self) -> str:
        """The built-in policy with it."""
        whole = yaml.safe_load(default_policy_text())
        whole |= {"rules": [*self.piece, *whole["rules"]]} if isinstance(self.piece, list) else self.piece
        return yaml.safe_dump(whole, sort_keys=False)

    @property
    def policy(self) -> Policy:
        return parse_policy(self.text)


def recipes() -> list[Recipe]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        before, piece, below = re.split(r"```(?:yaml)?\n", section)
        found.append(Recipe(before, yaml.safe_load(piece), below))
    return found


each_recipe = pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.title)


def test_there_are_recipes_and_each_says_what_it_does() -> None:
    assert len(recipes()) > 12
    assert not [each.title for each in recipes() if not _FLEET.search(each.below) and not _FINDING.search(each.below)]


@each_recipe
def test_a_recipe_leaves_no_doubt(recipe: Recipe) -> None:
    own = {OF_ONES_OWN: next(iter(CHECKS.values()))}  # a check of that name is there
    doubts = find_warnings(recipe.policy, CHECKS | own)
    assert not [doubt for doubt in doubts if f"`{place_of(doubt)}: " not in recipe.before]


@each_recipe
def test_a_recipe_does_to_findings_what_is_said(recipe: Recipe) -> None:
    policy = recipe.policy
    known = {
        (row.check, row.reason, row.verdict.value): row for row in policy_rows(policy, load_catalogue(None), CHECKS)
    }
    for check, reason, verdict, said in _FINDING.findall(recipe.below):
        row = known.get((check, reason, verdict))
        fault_class = row.fault_class if row is not None else ""
        rule = policy.rule_for(check, "host", reason, Verdict(verdict), fault_class)
        assert row is not None or reason == "*", f"{check} has no {reason} {verdict}"
        assert rule is not None
        taint = f" {format_taint(as_our_taint(rule.node_taint))}" if rule.node_taint is not None else ""
        assert f"{rule.action}{taint}" == said


@each_recipe
def test_a_recipe_does_to_a_fleet_what_is_said(recipe: Recipe, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "policy.yaml").write_text(recipe.text)
    for failing, fleet, minutes, tainted in _FLEET.findall(recipe.below):
        within_s = 60 * (1 if minutes == "one" else int(minutes))
        (tmp_path / "nodes.json").write_text(json.dumps({"items": [node(number) for number in range(int(fleet))]}))
        logs = [tmp_path / f"node-{number}.log" for number in range(int(failing))]
        for number, log in enumerate(logs):
            lines = [(number * within_s // len(logs), XID_79), (within_s + 120, "usb 1-1: USB disconnect")]
            log.write_text("".join(f"{stamp(at_s)} {text}\n" for at_s, text in lines))
        files = ["--nodes", str(tmp_path / "nodes.json"), "--log", *map(str, logs)]
        assert main(["replay", str(tmp_path / "policy.yaml"), *files, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["nodes"], told["nodesTainted"]) == (int(fleet), int(tainted)), told


def place_of(doubt: str) -> str:
    return doubt.partition(": ")[0]


def stamp(at_s: int) -> str:
    """As `dmesg --time-format iso` writes it."""
    return (BEGINS + timedelta(seconds=at_s)).isoformat(timespec="microseconds").replace(".", ",")


def node(number: int) -> dict[str, Any]:
    labels = {"example.com/gpu": "h100", "topology.kubernetes.io/rack": f"rack-{number // 2}"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": f"node-{number}", "labels": labels}, "status": ready}
