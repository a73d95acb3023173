"""`muster simulate`: the shipped example, its page, and every file that is not valid."""

import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.shared_data import SharedData

from muster_cli.__main__ import main
from muster_cli.simulate.variants import make_variants, read_variation
from muster_cli.usage import UsageError
from muster_tainter.policy.file import load_policy

ROOT = Path(__file__).parents[3]
FLEET = """
groups: [{name: gpu, nodes: 4}]
start: 2026-01-01T00:00:00Z
end: 2026-01-03T00:00:00Z
workload: {kinds: [{name: one, nodes: 1, lasts: 20h}]}
"""
FAULTS = """node,start,end,class
gpu-1,2026-01-01T05:00:00Z,2026-01-01T09:00:00Z,reboot
gpu-2,2026-01-01T11:00:00Z,,reboot
"""
POLICY = "rules: [{name: bad, match: {class: [reboot]}, action: taint}]\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in (("fleet.yaml", FLEET), ("faults.csv", FAULTS), ("mine.yaml", POLICY)):
        (tmp_path / name).write_text(text)
    return tmp_path


def simulate(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["simulate", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code, out, _ = simulate(capsys, *words, "-o", "json")
    assert code == 0
    return json.loads(out)


def test_commands_of_the_page(tmp_path: Path) -> None:
    """The shipped files give a page and figures."""
    page = tmp_path / "result.html"
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    runner = CommandRunner(commands_of_test(__file__), {"build/result.html": str(page)}, environ)
    for line in sorted(runner.left):
        # the intervals take 26 times as long
        assert "goodput" in runner.type(line, "--replicates", "0")
    assert not runner.left
    assert page.read_text().endswith("</html>\n")


def test_two_policies_on_recorded_faults(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = files / "mine.yaml", "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv"
    found = document(capsys, *words, "--replicates", 5, "--processes", 1)
    assert [each["name"] for each in found["policies"]] == ["mine", "built-in"]
    for each in found["policies"]:
        hours = each["acceleratorHours"]
        total = hours.pop("total")
        assert total == 4 * 8 * 48
        assert sum(hours.values()) == pytest.approx(total)
        assert (each["faults"], each["measures"]["interruptions"]["value"]) == (2, 2)
    assert {each["measure"] for each in found["differences"]} == {"goodput", "interruptions"}
    assert not any(each["toldApart"] for each in found["differences"])


def test_copies_of_a_policy_with_other_values(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = files / "mine.yaml", "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv"
    values = ("--vary", "pools[0].budget.tainted=0", "--vary", "pools.all.budget.tainted=0,100%")
    (files / "mine.yaml").write_text(POLICY + "pools: [{name: all, selector: {}}]\n")
    found = document(capsys, *words, *values, "--replicates", 0, "--processes", 1)
    names = [
        "mine",
        "pools[0].budget.tainted=0",
        "pools.all.budget.tainted=0",
        "pools.all.budget.tainted=100%",
        "built-in",
    ]
    assert [each["name"] for each in found["policies"]] == names
    refusals = [each["measures"]["refusals"]["value"] for each in found["policies"]]
    assert refusals[0] == refusals[3] == 0
    assert refusals[1] == refusals[2] > 0


def test_how_often_nodes_are_tested_is_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "hidden.csv").write_text(
        "node,start,end,class,check,hidden\ngpu-1,2026-01-01T05:00:00Z,,reboot,gpumem,yes\n"
    )
    (files / "idle.yaml").write_text(FLEET.partition("workload")[0] + "agents: {planned: {gpumem: 2h}}\n")
    words = files / "mine.yaml", "--fleet", files / "idle.yaml", "--faults", files / "hidden.csv", "--replicates", 0
    found = document(capsys, *words, "--vary", "agents.planned.gpumem=1h,never")["policies"]
    tests = {each["name"]: (each["measures"]["tests"]["value"], each["measures"]["found"]["value"]) for each in found}
    assert tests["agents.planned.gpumem=never"] == (0, 0)
    assert tests["mine"][1] == tests["agents.planned.gpumem=1h"][1] == 1
    assert 0 < tests["mine"][0] < tests["agents.planned.gpumem=1h"][0]


@pytest.mark.parametrize(
    "shared",
    [
        "budget: &few {tainted: 100%}}\n  - {name: b, selector: {}, budget: *few}",
        "<<: &few {budget: {tainted: 100%}}}\n  - {<<: *few, name: b, selector: {}}",
    ],
)
def test_value_changes_only_one_of_the_places_that_share_a_mapping(tmp_path: Path, shared: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY + f"pools:\n  - {{name: a, selector: {{}}, {shared}\n")
    (varied,) = make_variants(path, load_policy(path), read_variation("pools.a.budget.tainted=5"))
    limits = [pool.budget.tainted for pool in varied.policy.pools]
    assert [each.of(80) for each in limits if each is not None] == [5, 80]


@pytest.mark.parametrize(
    "value", ["holdDown=[1", "holdDown.base=[", "holdDown.base=*a", "holdDown.base=2026-13-01", "a=" + "[" * 5000]
)
def test_value_that_is_not_yaml_is_named(value: str) -> None:
    with pytest.raises(UsageError, match="YAML"):
        list(make_variants(None, load_policy(None), read_variation(value)))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("holdDown.base=soon", 'holdDown.base: "soon"'),
        ("holdDown.bas=1h", "holdDown.bas: unknown key"),
        ("agents.planned.nic=1h", "gpumem"),
        ("agents.planned.gpumem=soon", "agents.planned.gpumem=soon"),
        ("pools[3].budget.tainted=1", "pools[3].budget.tainted=1"),
        ("rules.name=a", "rules.name=a"),
        ("rules.bad=a", "rules.bad=a"),
        ("pools.other.budget.tainted=1", "pools.other.budget.tainted=1"),
        ("rules.bad.match.name.a=1", "rules.bad.match.name"),
        ("holdDown.base=1h,1h", "twice"),
        ("a.b=" + ",".join("123456789abcdef"), "16"),
    ],
)
def test_value_that_a_policy_cannot_have_is_named(
    files: Path, capsys: pytest.CaptureFixture[str], value: str, found: str
) -> None:
    words = files / "mine.yaml", "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv"
    code, _, err = simulate(capsys, *words, "--vary", value)
    assert code == 64
    assert found in err


def test_processes_change_nothing(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv", "--replicates", 5
    assert document(capsys, *words, "--processes", 1) == document(capsys, *words, "--processes", 2)


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("href", "src", "data", "action")]


def test_page_needs_nothing_from_the_network(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = files / "result.html"
    name = "<script>alert(1)<.yaml"
    (files / name).write_text(POLICY)
    words = files / name, "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv"
    assert simulate(capsys, *words, "--html", page, "--replicates", 5, "--processes", 1)[0] == 0
    text = page.read_text()
    found = _Page(text)
    assert found.tags.count("svg") == 2 * 5  # wide and narrow
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert not found.links
    assert not re.search(r"url\(|@import|https?:", text)


@pytest.mark.parametrize(
    ("broken", "text", "found"),
    [
        ("mine.yaml", "rules: [{name: a, match: {moon: 1}, action: taint}]", "rules[0].match.moon"),
        ("mine.yaml", "rules: [", "mine.yaml"),
        ("fleet.yaml", FLEET.replace("nodes: 1", "nodes: 9"), "workload.kinds[0].nodes"),
        ("faults.csv", FAULTS.replace("gpu-2", "gpu-7"), "faults.csv:3"),
        ("faults.csv", FAULTS.replace("T09", "T04"), "faults.csv:2"),
        ("faults.csv", "", "faults.csv:1"),
        ("faults.csv", "[1]", "faults.csv"),
    ],
)
def test_bad_file_is_named(files: Path, capsys: pytest.CaptureFixture[str], broken: str, text: str, found: str) -> None:
    (files / broken).write_text(text)
    words = files / "mine.yaml", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv"
    code, _, err = simulate(capsys, *words)
    assert code == 64
    assert found in err


@pytest.mark.parametrize(
    "words",
    [
        ("-", "--fleet", "missing.yaml"),
        ("-", "-", "--fleet", "fleet.yaml", "--faults", "faults.csv"),
        ("-", "--fleet", "fleet.yaml"),
        ("-", "--fleet", "fleet.yaml", "--faults", "/dev/null"),
        ("-", "--fleet", "fleet.yaml", "--faults", "missing.csv"),
        ("-", "--fleet", "fleet.yaml", "--faults", "faults.csv", "--html", "missing/page.html", "--replicates", "0"),
    ],
)
def test_what_cannot_be_run(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(files)
    code, _, err = simulate(capsys, *words)
    assert code == 64
    assert err


@pytest.mark.parametrize("flag", [
    ("--replicates", "3"), ("--processes", "0"), ("--seed", "-1"), ("--seed", "x"), ("--vary", "holdDown.base"),
    ("--vary", "holdDown.base="), ("--vary", "holdDown..base=1h"), ("--vary", "pools[x].name=a"),
])  # fmt: skip
def test_flag_out_of_range(files: Path, flag: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "-", "--fleet", str(files / "fleet.yaml"), *flag])
    assert ended.value.code == 64


def test_faults_of_the_file_and_of_rates_exclude_each_other(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "fleet.yaml").write_text(FLEET + "faults: {rates: [{class: reboot, perNodeYear: 1}]}\n")
    code, _, err = simulate(capsys, "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv")
    assert code == 64
    assert "faults" in err


def test_jobs_of_a_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "fleet.yaml").write_text(FLEET.partition("workload")[0])
    (files / "jobs.csv").write_text("submitted,nodes,lasts\n2026-01-01T01:00:00Z,2,6h\n2026-01-01T02:00:00Z,4,5h\n")
    words = "-", "--fleet", files / "fleet.yaml", "--faults", files / "faults.csv", "--jobs", files / "jobs.csv"
    (found,) = document(capsys, *words, "--replicates", 0)["policies"]
    assert found["jobsFinished"] == 2
    assert found["acceleratorHours"]["goodput"] == pytest.approx((2 * 6 + 4 * 5) * 8)


def test_public_trace_is_recognised(files: Path, shared_data: SharedData, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
groups: [{name: gpu, nodes: 400, namesFrom: faults}]
end: 2024-05-20T00:00:00Z
"""
    (files / "fleet.yaml").write_text(text)
    trace = shared_data.folder / "traces" / "infinitehbd_fault_trace.json"
    found = document(capsys, "-", "--fleet", files / "fleet.yaml", "--faults", trace, "--replicates", 0)
    assert found["nodes"] == 400
    assert 20 < found["policies"][0]["faults"] < 150
