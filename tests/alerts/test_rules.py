"""Alerts fire and resolve by the real promtool, ask for metrics that exist, and lead to a page that says what to do."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.metrics_page import PAGE, written

from muster_sandbox.prometheus import PrometheusPrograms, find_programs

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm/muster/files/alerts.yaml"
PAGES = ROOT / "docs/runbooks"
PROMTOOL_TESTS = sorted(Path(__file__).parent.glob("*.yaml"))
SECTIONS = ["## What it means", "## What to look at", "## What to do"]

Rule = dict[str, Any]


@pytest.fixture(scope="session")
def tools() -> PrometheusPrograms:
    return find_programs(print)


def rules() -> dict[str, Rule]:
    found = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def run(*words: str | Path) -> str:
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_promtool_takes_the_rules_and_each_fires_and_resolves(tools: PrometheusPrograms, tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in run(tools.promtool, "check", "rules", RULES)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(with_values_only(yaml.safe_load(RULES.read_text()))))
    tests = []
    for path in PROMTOOL_TESTS:
        tests.append(tmp_path / path.name)
        tests[-1].write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"rule_files": ["rules.yaml"]}))
    run(tools.promtool, "test", "rules", *tests)


def with_values_only(groups: dict[str, Any]) -> dict[str, Any]:
    """The rules with one annotation: the values that their texts contain, in order. promtool compares whole texts."""
    for group in groups["groups"]:
        for rule in group["rules"]:
            values = re.findall(r"{{.*?}}", "".join(rule["annotations"][each] for each in ("summary", "description")))
            rule["annotations"] = {"values": " ".join(values)} if values else {}
    return groups


def test_each_alert_has_a_test_in_which_it_is_silent_fires_and_is_silent_again() -> None:
    def fired() -> Iterator[tuple[str, list[bool]]]:
        for path in PROMTOOL_TESTS:
            for test in yaml.safe_load(path.read_text())["tests"]:
                asked: dict[str, list[bool]] = {}
                for each in test["alert_rule_test"]:
                    asked.setdefault(each["alertname"], []).append(bool(each["exp_alerts"]))
                yield from asked.items()

    complete = {name for name, seen in fired() if seen == [False, True, False]}
    assert complete == set(rules())


def test_each_metric_of_an_expression_is_one_that_the_page_of_metrics_names() -> None:
    agents = set(re.findall(r"^\| `(muster_agent_\w+)`", PAGE.read_text(), re.MULTILINE))
    known = agents | {
        name for part in ("The tainter's", "The operator's", "The V-IPU proxy's") for name in written(part)
    }
    for name, rule in rules().items():
        asked = set(re.findall(r"\bmuster_\w+", rule["expr"]))
        assert asked, name
        assert asked <= known, name


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(rules())
    for name, rule in rules().items():
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_it_means_what_to_look_at_and_what_to_do(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == SECTIONS
    looked = text.partition(SECTIONS[1])[2].partition("\n## ")[0]
    assert re.search(r"^    (muster|kubectl) ", looked, re.MULTILINE), "no command to look with"


def test_every_command_of_muster_on_a_page_is_one_that_there_is() -> None:
    listed = run(sys.executable, "-m", "muster_cli", "--help")
    exist = set(re.findall(r"^  (\w[\w-]+) ", listed, re.MULTILINE))
    for page in PAGES.glob("*.md"):
        asked = set(re.findall(r"(?:^    |`)muster ([a-z][\w-]*)", page.read_text(), re.MULTILINE))
        assert asked <= exist, page.name


# -- where they go


def test_alertmanager_takes_the_example_and_sends_each_severity_its_way(tools: PrometheusPrograms) -> None:
    example = ROOT / "examples/alertmanager.yaml"
    assert "SUCCESS" in run(tools.amtool, "check-config", example)
    routed = {
        severity: run(
            tools.amtool, "config", "routes", "test", f"--config.file={example}",
            "alertname=MusterIncident", f"severity={severity}",
        ).strip()
        for severity in ("critical", "warning")
    }  # fmt: skip
    assert routed == {"critical": "on-call", "warning": "by-day"}
