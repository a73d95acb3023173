"""`muster policy check`: what is wrong with a policy, and what it does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.wording.facts import missing_facts

from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.registry import load_registry
from muster_cli.__main__ import main
from muster_cli.commands.policy import describe_rules, verdict_rows
from muster_cli.report.columns import as_page
from muster_cli.report.policies.rows import PolicyRow, policy_rows
from muster_cli.report.policies.warnings import find_notes, find_warnings
from muster_tainter.policy.file import load_policy, parse_policy

CHECKS = load_registry()
TAINT = "action: taint"


def doubts(text: str) -> list[str]:
    return list(find_warnings(parse_policy(text), CHECKS))


def rows_of(text: str | None = None) -> list[PolicyRow]:
    return policy_rows(load_policy(None) if text is None else parse_policy(text), load_catalogue(None), CHECKS)


def test_the_built_in_policy_is_beyond_doubt(capsys: Any) -> None:
    assert main(["policy", "check", "-"]) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize(("text", "said"), [
    ("rules: [{name: x, match: {}, action: tain}]", 'bad.yaml: rules[0].action: "tain": '),
    ("rules: [{name: x, match: {}, action: taint, taint: {effect: NoShedule}}]", "bad.yaml: rules[0].taint.effect"),
    ("rules: []\npools: [{name: a, selector: {}, budget: {tainted: 200%}}]", "bad.yaml: pools[0].budget.tainted"),
    ("rules: [", "bad.yaml: "),
])  # fmt: skip
def test_a_policy_that_the_tainter_would_refuse_ends_with_64_and_the_place(
    tmp_path: Path, capsys: Any, text: str, said: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert main(["policy", "check", str(file)]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("rules: [{name: x, action: drain}]", ("rules[0] (x).action", "tainter.allow.drain=true")),
        (
            "rules: []\npools: [{name: a, selector: {}, repair: {reset: {create: {manifest: "
            "{apiVersion: example.com/v1, kind: Remedy, metadata: {namespace: ops}}}}}}]",
            ("pools[0] (a).repair.reset.create", "Remedy", "ops"),
        ),
    ],
)
def test_a_right_that_only_some_policies_need_is_a_note(text: str, facts: tuple[str, ...]) -> None:
    assert [note for note in find_notes(parse_policy(text)) if not missing_facts(note, *facts)]


def test_a_file_that_is_none_ends_with_64(capsys: Any) -> None:
    assert main(["policy", "check", "/nonexistent/policy.yaml"]) == 64
    assert "/nonexistent/policy.yaml: " in capsys.readouterr().err


def test_each_row_of_the_catalogue_has_its_rule_and_action(tmp_path: Path, capsys: Any) -> None:
    assert main(["policy", "check", "-", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {(row["reason"], row["verdict"], row["class"]): row for row in document["rows"] if row["check"] == "dmesg"}
    fallen = found["Xid79", "FAIL", "reboot"]
    assert (fallen["rule"], fallen["taint"]) == ("hardware", "muster.dev/faulty=true:NoSchedule")
    assert (fallen["closedBy"], fallen["proof"]) == (["boot", "driver", "source", "person"], None)
    assert found["Xid54", "FAIL", "contact"]["proof"]["checks"] == ["gpumem", "pciebw", "dcgm"]
    assert found["Xid31", "WARN", "restart-app"]["action"] == "event"
    catalogue = load_catalogue(None)
    bad = {f"Xid{code}" for code, row in catalogue.xids.items() if row.verdict == "FAIL"} | {
        row.name for row in catalogue.rows if row.verdict == "FAIL"
    }
    assert bad <= {reason for reason, _, _ in found}
    assert {row["check"] for row in document["rows"]} == set(CHECKS)


def test_finding_without_a_rule_has_the_action_nothing() -> None:
    found = {
        (row.reason, row.verdict.value): row.action
        for row in rows_of("rules: [{name: x, match: {reason: Xid79}, action: taint}]")
    }
    assert (found["Xid79", "FAIL"], found["Xid95", "FAIL"]) == ("taint", "nothing")


def test_a_reason_that_only_the_policy_names_has_its_row() -> None:
    found = [row for row in rows_of("rules: [{name: x, match: {check: nic, reason: LinkDown}, action: taint}]")
             if (row.check, row.reason) == ("nic", "LinkDown") and row.verdict == "FAIL"]  # fmt: skip
    assert {row.action for row in found} == {"taint"}


@pytest.mark.parametrize(("first", "second", "never"), [
    ("{}", "{check: dmesg}", True),
    ("{check: dmesg}", "{}", False),
    ("{check: dmesg}", "{check: [dmesg, ping]}", False),
    ("{check: [dmesg, ping]}", "{check: ping}", True),
    ("{component: 'gpu/*'}", "{component: 'gpu/0000:*'}", True),
    ("{component: 'gpu/0*'}", "{component: 'gpu/*'}", False),
    ("{reason: 'Xid7?'}", "{reason: Xid79}", True),
    ("{class: [reset, reboot]}", "{class: reset}", True),
    ("{class: reset}", "{}", False),
    ("{verdict: FAIL}", "{verdict: [FAIL, WARN]}", False),
    ("{correlated: 3}", "{}", False),
    ("{correlated: 3}", "{correlated: 5}", True),
    ("{correlated: 5}", "{correlated: 3}", False),
    ("{solo: true}", "{}", False),
    ("{}", "{solo: true}", True),
])  # fmt: skip
def test_a_rule_that_another_one_leaves_nothing_for_is_a_warning(first: str, second: str, never: bool) -> None:
    text = f"rules:\n  - {{name: a, match: {first}, {TAINT}}}\n  - {{name: b, match: {second}, {TAINT}}}\n"
    assert [line for line in doubts(text) if line.startswith("rules[1] (b): ")] == doubts(text)
    assert len(doubts(text)) == int(never)
    assert not missing_facts("".join(doubts(text)), *(["a"] if never else []))


def test_rules_that_leave_nothing_together_are_named_together() -> None:
    text = """
rules:
  - {name: f, match: {verdict: FAIL}, action: event}
  - {name: w, match: {verdict: WARN}, action: event}
  - {name: late, match: {verdict: [FAIL, WARN], check: dmesg}, action: taint}
"""
    (doubt,) = doubts(text)
    assert doubt.startswith("rules[2] (late): ")
    assert not missing_facts(doubt, "f, w")


@pytest.mark.parametrize(("text", "place"), [
    ("rules: []", "rules: "),
    ("rules: [{name: a, match: {check: pcibw}, action: taint}]", "rules[0] (a).match.check: 'pcibw': "),
    ("rules: [{name: a, match: {}, action: taint, proof: {checks: [dcgmi]}}]", "rules[0] (a).proof.checks: "),
    ("rules: [{name: a, match: {}, action: taint, proof: {ifInstalled: [dcgmi]}}]", "rules[0] (a).proof.ifInstalled: "),
    ("rules: [{name: a, match: {check: dmesg}, action: taint, closeOn: [proof]}]", "rules[0] (a).closeOn: "),
    ("rules: [{name: a, match: {}, action: event}]\npools: [{name: p, selector: {}, budget: {tainted: 0}}]",
     "pools[0] (p).budget.tainted: 0: "),
    ("rules: [{name: a, match: {}, action: event}]\npools: [{name: p, selector: {}, budget: {healthyPerDomain: 100%}}]",
     "pools[0] (p).budget.healthyPerDomain: 100%: "),
    ("rules: [{name: a, match: {}, action: event}]\npools: [{name: p, selector: {}, testing: {preFlight: [dcgmi]}}]",
     "pools[0] (p).testing.preFlight: "),
])  # fmt: skip
def test_probable_mistake_is_a_warning_with_its_place(tmp_path: Path, capsys: Any, text: str, place: str) -> None:
    assert [line.startswith(place) for line in doubts(text)] == [True]
    (tmp_path / "p.yaml").write_text(text)
    assert main(["policy", "check", str(tmp_path / "p.yaml")]) == 1
    assert f"warning: {doubts(text)[0]}" in capsys.readouterr().out


def test_pools_that_may_overlap_or_have_no_budget_are_noted() -> None:
    text = """
rules: []
pools:
  - {name: a, selector: {matchLabels: {gpu: h100}}, budget: {tainted: 10%}}
  - {name: b, selector: {matchLabels: {gpu: a100}}}
  - {name: c, selector: {matchLabels: {zone: x}}, budget: {perDomain: 1}}
"""
    told = list(find_notes(parse_policy(text)))
    assert [set(re.findall(r"pools\[\d\] \(\w\)(?:\.domain)?", line)) for line in told] == [
        {"pools[1] (b)"},
        {"pools[2] (c).domain"},
        {"pools[0] (a)", "pools[2] (c)"},
        {"pools[1] (b)", "pools[2] (c)"},
    ]
    assert next(find_notes(parse_policy("rules: []"))).startswith("pools: ")


def test_the_table_fits_a_hundred_columns() -> None:
    found, policy = rows_of(), load_policy(None)
    page = as_page(("VERDICT", "CLASS", "RULE", "ACTION", "FINDINGS"), verdict_rows(found, frozenset()), 100)
    assert max(map(len, [*page.splitlines(), *describe_rules(policy, found)])) <= 100
    facts = ("hardware", "kernel log", "reboot, reset", "taint muster.dev/faulty=true:NoSchedule")
    assert any(not missing_facts(line, *facts) for line in describe_rules(policy, found))


def test_a_reason_that_a_rule_names_for_one_check_is_no_reason_of_the_others() -> None:
    text = f"rules: [{{name: x, match: {{check: disk, reason: Worn}}, {TAINT}}}]"
    assert {row.check for row in rows_of(text) if row.reason == "Worn"} == {"disk"}
