"""The folder as a whole: names, what breaks alone, and how it joins the registry; the page for users works as typed."""

import json
import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.checks.bad_input import TEXTS
from tests.wording.facts import missing_facts

from muster_checks.base.declaration import Check
from muster_checks.base.execution import run_probe
from muster_checks.plugins.folder import FILES_LIMIT, load_folder, read_folder
from muster_checks.registry import GROUP, load_registry, select_checks

NAGIOS = "kind: nagios\nname: {}\ncommand: [/bin/true]\n"
KERNEL = {
    "plugin": "kmsg",
    "source": "kernel-monitor",
    "rules": [{"type": "temporary", "reason": "WidgetHot", "pattern": "widget hot"}],
}


@pytest.fixture
def fill(bench, custom):
    """Files of the folder: a custom monitor of that source, or text."""

    def write(**files: object) -> None:
        bench.script("ok.sh", "exit 0")
        for name, content in files.items():
            stem, _, suffix = name.rpartition("_")
            text = content if isinstance(content, str) and suffix != "json" else None
            document = custom({"path": "./ok.sh"}, source=content) if isinstance(content, str) else content
            bench.config(f"{stem.replace('_', '-')}.{suffix}", text if text is not None else document)

    return write


def names(folder: Path) -> list[str]:
    return [check.name for check in load_folder(folder)]


def test_checks_come_in_the_order_of_files_and_are_named_by_their_source(bench, fill):
    fill(b_json="NTP custom-plugin_Monitor", a_yaml=NAGIOS.format("rootdisk"), c_json="7 dwarfs")
    assert names(bench.folder) == ["rootdisk", "ntpcustompluginmonitor", "dwarfs"]


def test_files_of_one_source_are_named_by_themselves_whether_they_work_or_not(bench, fill, custom):
    fill(health_kubelet_json="health-checker", health_docker_json="health-checker")
    assert names(bench.folder) == ["healthdocker", "healthkubelet"]
    (bench.folder / "health-docker.json").write_text(json.dumps(custom({"path": "./gone"}, source="health-checker")))
    assert names(bench.folder) == ["healthkubelet"]


def test_a_file_without_a_source_is_named_by_itself(bench, fill):
    fill(my_disk_json="")
    assert names(bench.folder) == ["mydisk"]


def test_two_checks_of_one_name_are_the_first_and_a_reason(bench, fill):
    fill(a_yaml=NAGIOS.format("same"), b_yml=NAGIOS.format("same"))
    broken: dict[str, str] = {}
    assert len(load_folder(bench.folder, broken)) == 1
    assert broken.keys() == {str(bench.folder / "b.yml")}
    assert missing_facts(broken[str(bench.folder / "b.yml")], "same", "a.yaml") == []


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_broken_file_is_named_and_takes_no_other_with_it(text, suffix, bench, fill):
    fill(good_json="good")
    (bench.folder / f"bad.{suffix}").write_bytes(text)
    broken: dict[str, str] = {}
    assert [check.name for check in load_folder(bench.folder, broken)] == ["good"]
    assert list(broken) == [str(bench.folder / f"bad.{suffix}")]
    assert 0 < len(broken[str(bench.folder / f"bad.{suffix}")]) < 600


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "custom, kmsg, journald, filelog"),
        ({"plugin": "docker"}, 'plugin: "docker": '),
        ({"plugin": 5}, 'plugin: "5": '),
        ({"plugin": None, "cpu": {}}, "plugin: missing"),
        ({"cpu": {}, "invokeInterval": "60s"}, "a system-stats "),
        ([{"moduleName": "x"}], "a list: "),
        ("text", "a str: "),
        ({**KERNEL, "rules": [{**KERNEL["rules"][0], "pattern": "("}]}, 'rules[0].pattern: "("'),
        ({**KERNEL, "rules": [{**KERNEL["rules"][0], "pattern": "(?:x{300}y{300}){1}"}] * 20}, "RE2"),
    ],
)
def test_what_is_no_monitor_says_what_was_expected(document, told, bench):
    path = bench.config("x.json", document if not isinstance(document, str) else json.dumps(document))
    broken: dict[str, str] = {}
    found = read_folder(bench.folder, broken)
    assert (found.checks, found.kernel_rules) == ({}, ())
    assert told in broken[str(path)]


def test_rules_of_all_files_together_are_no_more_than_one_scan_can_look_for(bench):
    half = {**KERNEL, "rules": [{**KERNEL["rules"][0], "pattern": "x{300}y{300}" * 8}]}
    bench.config("a.json", half)
    bench.config("b.json", half)
    broken: dict[str, str] = {}
    assert len(read_folder(bench.folder, broken).kernel_rules) == 1
    assert missing_facts(broken[str(bench.folder / "b.json")], "8000") == []


def test_hidden_files_folders_and_other_suffixes_are_not_looked_at(bench, fill):
    fill(good_json="good")
    (bench.folder / "..data").mkdir()
    (bench.folder / ".hidden.json").write_text("{")
    (bench.folder / "notes.txt").write_text("{")
    broken: dict[str, str] = {}
    assert len(load_folder(bench.folder, broken)) == 1
    assert broken == {}


def test_a_folder_that_is_not_there_is_named(tmp_path):
    broken: dict[str, str] = {}
    assert load_folder(tmp_path / "gone", broken) == []
    assert broken.keys() == {str(tmp_path / "gone")}


def test_of_too_many_files_the_first_are_read(bench):
    for number in range(FILES_LIMIT + 2):
        (bench.folder / f"{number:04}.json").write_text("{}")
    broken: dict[str, str] = {}
    load_folder(bench.folder, broken)
    assert len(broken) == FILES_LIMIT + 2
    assert missing_facts(broken[str(bench.folder / "0501.json")], "502", "500") == []


# ---- the registry --------------------------------------------------------------------------------------------------


def test_the_folder_joins_the_registry_and_no_name_is_taken_twice(bench, fill):
    fill(a_json="good", b_json="dmesg", c_yaml=NAGIOS.format("ping"), d_json={"plugin": "custom", "source": "all"})
    (bench.folder / "d.json").write_text((bench.folder / "a.json").read_text().replace('"good"', '"all"'))
    broken: dict[str, str] = {}
    checks = load_registry([], broken, bench.folder)
    assert [check.name for check in select_checks(["good"], checks)] == ["good"]
    told = {Path(file).name: why for file, why in broken.items()}
    names = {"b.json": "dmesg", "c.yaml": "ping", "d.json": "all"}
    assert told.keys() == names.keys()
    assert [f"name {name!r}" in told[file] for file, name in names.items()] == [True] * 3


def test_who_does_not_ask_what_was_left_out_finds_it_in_the_log(bench, caplog):
    path = bench.config("x.json", "{")
    load_registry([], plugins_folder=bench.folder)
    assert str(path) in caplog.text
    caplog.clear()
    load_registry([], {}, bench.folder)
    assert caplog.text == ""


async def test_rules_for_the_kernel_log_join_the_check_dmesg(bench):
    from muster_cli.cluster.local_checks import run_check

    bench.config("kernel-monitor.json", KERNEL)
    log = bench.folder / "kern.log"
    log.write_text("[ 1.0] widget hot\n[ 2.0] Killed process 1 (x) total-vm:1kB\n")
    dmesg = load_registry([], plugins_folder=bench.folder)["dmesg"]
    parameters = dmesg.parameters.model_validate({"source": "file", "path": log, "complete": True})
    result = await run_check(dmesg, bench.node, parameters)
    assert {finding.reason for finding in result.findings} == {"WidgetHot", "OOMKilling"}
    assert "dmesg" in load_registry([])
    plain = await run_check(load_registry([])["dmesg"], bench.node, parameters)
    assert {finding.reason for finding in plain.findings} == {"OOMKilling"}


async def test_rules_and_a_catalogue_that_are_too_much_together_are_told_of(bench):
    bench.config("a.json", {**KERNEL, "rules": [{**KERNEL["rules"][0], "pattern": "x{300}y{300}" * 7}]})
    rows = [
        {"name": f"R{i}", "pattern": "x{300}y{300}" * 7, "component": "host", "verdict": "WARN", "message": "m"}
        for i in range(3)
    ]
    catalogue = bench.folder / "own.json"
    catalogue.with_suffix(".catalogue").write_text(json.dumps({"rows": rows}))
    dmesg = load_registry([], plugins_folder=bench.folder)["dmesg"]
    parameters = dmesg.parameters.model_validate({"catalogue": catalogue.with_suffix(".catalogue")})
    assert dmesg.stream is not None
    with pytest.raises(ValueError, match=r"catalogue.*\b\d+ RE2\b"):
        dmesg.stream(bench.node, parameters, None)


# ---- docs/plugins.md -----------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs/plugins.md").read_text()


def blocks() -> dict[str, str]:
    """The examples of the page, by the name of the file that stands before each."""
    found = re.findall(r"^`([^`]+)`[^\n]*:\n\n```\w+\n(.*?)^```", PAGE, re.M | re.S)
    return {Path(name).name: text for name, text in found}


@pytest.fixture
def page(bench) -> dict[str, Check]:
    """The checks of the page's files."""
    for name, text in blocks().items():
        if name.endswith((".json", ".yaml", ".sh")):
            (bench.folder / name).write_text(text)
    (bench.folder / "uptime.sh").chmod(0o755)
    broken: dict[str, str] = {}
    checks = load_registry([], broken, bench.folder)
    assert broken == {}
    return checks


async def test_the_executable_of_the_page_runs(page, bench):
    check = page["uptimemonitor"]
    result = await run_probe(check, bench.node, check.parameters())
    assert (result.verdict, result.findings[0].message) == ("PASS", "the clock runs")


async def test_the_rules_of_the_page_find_what_it_says(page, bench):
    from muster_cli.cluster.local_checks import run_check

    log = bench.folder / "widget.log"
    log.write_text("[ 1.0] widget 7: dead\n")
    parameters = page["dmesg"].parameters.model_validate({"source": "file", "path": log})
    result = await run_check(page["dmesg"], bench.node, parameters)
    assert [(f.reason, str(f.verdict), f.message) for f in result.findings] == [
        ("WidgetDied", "FAIL", "WidgetBroken: widget 7: dead")
    ]


async def test_the_nagios_plug_in_of_the_page_is_a_check(page, bench):
    check = page["rootdisk"]
    result = await run_probe(check, bench.node, check.parameters())
    assert (check.period_s, check.devices) == (300.0, ("disk",))
    installed = os.access("/usr/lib/nagios/plugins/check_disk", os.X_OK)
    assert installed or (result.verdict, result.reason) == ("UNKNOWN", "ToolMissing")


async def test_the_package_of_the_page_is_a_check(bench, monkeypatch):
    (bench.folder / "muster_loadavg.py").write_text(blocks()["muster_loadavg.py"])
    monkeypatch.syspath_prepend(str(bench.folder))
    try:
        check = load_registry([EntryPoint("loadavg", "muster_loadavg:LOADAVG", GROUP)])["loadavg"]
        result = await run_probe(check, bench.node, check.parameters())
    finally:
        sys.modules.pop("muster_loadavg", None)
    assert result.verdict == "PASS"
    assert result.findings[0].measurements[0].name == "load5"
