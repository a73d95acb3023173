"""`muster check` as the pages type it, on a node that has all that checks look for: with its /sys, /etc and tools, but
this machine's /proc. The files of docs/plugins.md are made of that page."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.network_fabric import fabric
from tests.agent.recorded_node import RecordedNode
from tests.checks.ib.port_tree import pack
from tests.checks.plugins.test_folder import blocks
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.docs.document_commands import ROOT

from muster_checks.base.declaration import Cost
from muster_checks.registry import load_registry
from muster_sandbox.image.product import fetch_setuptools

CHECKS = Path(__file__).parents[2] / "checks"
LIGHT = {name for name, check in load_registry(plug_ins=[]).items() if check.cost is Cost.LIGHT and check.enabled}


HEAVY = "muster check pciebw gpumem membw"
# name, file, exit code, and a word of what is told
SAMPLES = [
    ("clock", "clock/samples/no_source.csv", 1, "ClockNotSynchronised"),
    ("dcgm", "dcgm/samples/diag_fail.json", 2, "DcgmPersistenceMode"),
    ("disk", "disk/samples/smartctl_nvme_failing.json", 2, "NvmeUnreliable"),
    ("ping", "ping/samples/iputils-loss.txt", 1, "10 of 11 requests answered"),
]


class Machine:
    """Where lines are typed. left: those that have not been. widget: the log of the page's example."""

    def __init__(self, node: RecordedNode) -> None:
        self.node, self.folder = node, node.folder
        self.left = commands_of_test(__file__)
        self.widget = self.folder / "widget.log"

    def type(self, line: str, code: int | None = None, *, folder: Path | None = None, **given: str) -> str:
        """What it prints. code: its exit code, of which any will do if there is none. given: what stands for
        placeholders, and of the environment, in capitals."""
        names = {"/tmp/widget.log": str(self.widget)} | given
        typist = CommandRunner(commands_of_test(__file__), names, self.node.environment | given, folder or self.folder)
        inside = self.node.inside("etc", "root/sys")
        printed = typist.type(line, within=inside, judge=lambda done: code in (None, done.returncode))
        self.left &= typist.left
        return printed


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    page = {f"muster/plugins/{name}": text for name, text in blocks().items() if name.endswith((".json", ".sh"))}
    assert len(page) == 3
    with fabric(1) as links:
        (namespace,) = links.hosts.values()
        node = RecordedNode(tmp_path_factory.mktemp("machine"), namespace, page)
        (node.folder / "etc/muster/plugins/uptime.sh").chmod(0o755)
        yield Machine(node)


def verdicts(printed: str) -> dict[str, str]:
    """Of each check, from the table."""
    return dict(re.findall(r"^(\w+) +(PASS|SKIP|WARN|FAIL|UNKNOWN)\b", printed, re.MULTILINE))


def test_all_light_checks_at_once_and_what_is_missing_is_named(machine: Machine) -> None:
    """Nobody has installed here what asks the GPUs that /sys shows."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    printed = machine.type("muster check", PATH=path, LD_LIBRARY_PATH="")
    assert set(verdicts(printed)) == LIGHT
    for name in ("gpuconfig", "gpucount", "gpuecc", "gpufabric", "gpupower", "gputemp", "nvlink", "remapped"):
        assert re.search(rf"^{name} +UNKNOWN  ToolMissing: .*nvidia-smi", printed, re.M), printed


@pytest.mark.alone
def test_heavy_ones_by_name_measure(machine: Machine) -> None:
    found = verdicts(machine.type(HEAVY))
    assert list(found) == ["pciebw", "gpumem", "membw"]
    assert (found["pciebw"], found["gpumem"]) == ("WARN", "PASS"), "the figures recorded are those of a slower slot"
    assert found["membw"] in ("PASS", "UNKNOWN"), "whatever runs beside it is told, and is no fault"


def test_a_parameter_and_results_for_scripts(machine: Machine) -> None:
    (result,) = json.loads(machine.type("muster check dcgm --set r=3 --json", 0))
    assert (result["check"], result["verdict"]) == ("dcgm", "PASS")
    assert "dcgmi diag -r 3 -j\n" in (machine.node.tools / "calls").read_text()


def test_what_a_tool_printed_elsewhere_is_judged(machine: Machine) -> None:
    (machine.folder / "diag.json").write_bytes((CHECKS / "dcgm/samples/diag_fail.json").read_bytes())
    assert verdicts(machine.type("muster check --sample diag.json", 2)) == {"dcgm": "FAIL"}


@pytest.mark.parametrize(("name", "file", "code", "expected"), SAMPLES)
def test_a_sample_is_judged_by_the_check_that_is_named(
    machine: Machine, name: str, file: str, code: int, expected: str
) -> None:
    printed = machine.type("muster check NAME --sample FILE", code, NAME=name, FILE=str(CHECKS / file))
    assert list(verdicts(printed)) == [name]
    assert expected in printed


def test_a_packed_sys_is_judged_by_the_check_that_is_named(machine: Machine) -> None:
    packed = machine.folder / "infiniband.tar.xz"
    packed.write_bytes(pack(machine.folder / "root/sys/class/infiniband"))
    printed = machine.type("muster check NAME --sample FILE", 0, NAME="ib", FILE=str(packed))
    assert list(verdicts(printed)) == ["ib"]
    assert "rate 400 Gb/s (limit 400)" in printed


def test_a_folder_of_plug_ins_becomes_checks(machine: Machine) -> None:
    printed = machine.type("muster checks --plugins /etc/muster/plugins", 0)
    assert "uptimemonitor  (light, every 30 s)\n" in printed
    printed = machine.type("muster check --plugins /etc/muster/plugins")
    assert set(verdicts(printed)) == LIGHT | {"uptimemonitor"}
    printed = machine.type("muster check --plugins /etc/muster/plugins uptimemonitor", 0)
    assert re.fullmatch(r"uptimemonitor  PASS\n +PASS     host \S.*\n", printed)


def test_rules_for_logs_judge_a_saved_log(machine: Machine) -> None:
    (line,) = (each for each in commands_of_test(__file__) if "widget.json" in each)
    page = (ROOT / "docs/plugins.md").read_text()
    (saved,) = re.findall(r"^    \$ echo '(.*)' > /tmp/widget.log$", page, re.MULTILINE)
    machine.widget.write_text(f"{saved}\n")
    assert "FAIL     host WidgetDied: WidgetBroken: widget 7: dead\n" in machine.type(line, 2)


def test_a_package_is_found_where_it_is_installed(machine: Machine) -> None:
    package, site = machine.folder / "package", machine.folder / "site"
    package.mkdir()
    for name in ("pyproject.toml", "muster_loadavg.py"):
        (package / name).write_text(blocks()[name])
    search = machine.node.environment["PYTHONPATH"]
    # built with what is here already, and put beside Muster
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    builder = {"PYTHONPATH": os.pathsep.join([str(fetch_setuptools(print)), search]), "PIP_TARGET": str(site)}
    machine.type("pip install .", 0, folder=package, **offline, **builder)
    printed = machine.type("muster check loadavg", PYTHONPATH=os.pathsep.join([str(site), search]))
    assert re.match(r"loadavg  (PASS|WARN)\n +\1     host load5 [\d.]+ \(limit 1000\)\n", printed), printed


def test_no_line_was_left_out(machine: Machine) -> None:
    assert machine.left <= {HEAVY}, "which is typed alone"
