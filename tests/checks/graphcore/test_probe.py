"""Attributes and health as the tools give them, and the child that asks the library, which is run for real."""

import ast
import sys
from pathlib import Path

import pytest
from tests.checks.graphcore.sample import sample
from tests.wording.facts import missing_facts

from muster_checks.base.commands import LocalCommands
from muster_checks.base.declaration import NodeView
from muster_checks.graphcore import gcipuinfo_child
from muster_checks.graphcore.probe import read_attributes, read_health
from muster_checks.graphcore.settings import GraphcoreParameters, read_fabric
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.testing.recorded import failed, hung, node

NOWHERE = read_fabric(GraphcoreParameters(), {})
CHILD = "python3"
NO_LIBRARY = failed("python3", 3, b"No module named 'gcipuinfo'")
LIBRARY = """
DiscoverActivePartitionIPUs, DiscoverAllPartitionIPUs = "active", "all"
class gcipuinfo:
    def __init__(self, mode): self.mode = mode
    def checkHealthOfDevices(self): return '{"hosts": {"%s": []}}' % self.mode
"""


async def test_each_ipu_is_asked_for_by_its_id(tmp_path):
    view = node(
        tmp_path,
        {
            "gc-info -d 0": sample("gc_info_device_c600.txt"),
            "gc-info -d 1": failed("gc-info -d 1", 1, b"device is gone"),
            "gc-info -d 2": b"nothing\n",
            "gc-info -d 3": hung("gc-info -d 3"),
        },
    )
    devices = [IpuDevice(f"ipu/{number}", str(number)) for number in range(5)]
    readings = await read_attributes(view, NOWHERE, devices, 7.0)
    assert [reading.device for reading in readings] == devices
    assert readings[0].attributes is not None
    assert [reading.attributes for reading in readings[1:]] == [None] * 4
    assert "device is gone" in readings[1].trouble
    assert readings[2].trouble
    assert "killed" in readings[3].trouble
    assert "not found" in readings[4].trouble
    assert {timeout_s for _, timeout_s in view.commands.calls} == {7.0}


async def test_the_tools_are_told_of_the_controller_that_the_parameters_name(tmp_path):
    class Noting(LocalCommands):
        async def run(self, argv, *, timeout_s, environment=None, limit_bytes=0):
            self.environment = environment
            return failed("gc-info", 1)

    commands = Noting()
    reached = read_fabric(GraphcoreParameters(vipu_api_host="10.1.5.1", ipuof_config=Path("/opt/p1.conf")), {})
    await read_attributes(NodeView(tmp_path, commands), reached, [IpuDevice("ipu/0", "0")], 1.0)
    assert commands.environment == {"IPUOF_VIPU_API_HOST": "10.1.5.1", "IPUOF_CONFIG_PATH": "/opt/p1.conf"}


async def test_the_library_has_the_first_word(tmp_path):
    view = node(tmp_path, {CHILD: sample("gcipuinfo_health_check.json")})
    health = await read_health(view, NOWHERE, False, 5.0)
    assert [ipu.error for ipu in health.unhealthy] == ["device", "connection"]
    assert health.monitored is None
    assert [call[0][0] for call in view.commands.calls] == ["python3"]


@pytest.mark.parametrize("answers", [{CHILD: NO_LIBRARY}, {}])
async def test_gc_monitor_is_asked_where_there_is_no_library(tmp_path, answers):
    view = node(tmp_path, {**answers, "gc-monitor": sample("gc_monitor.txt")})
    health = await read_health(view, NOWHERE, True, 5.0)
    assert health.monitored == {str(number) for number in range(8)}
    assert view.commands.calls[-1][0] == ("gc-monitor", "--all-partitions")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({CHILD: failed(CHILD, -11)}, ("gcipuinfo", "python3", "SIGSEGV")),
        ({CHILD: hung(CHILD)}, ("10 s",)),
        ({CHILD: b"cannot connect to V-IPU\n"}, ("cannot connect to V-IPU",)),
        ({CHILD: NO_LIBRARY}, ("gcipuinfo", "gc-monitor")),
        ({CHILD: NO_LIBRARY, "gc-monitor": failed("gc-monitor", -11)}, ("gc-monitor", "SIGSEGV")),
        ({CHILD: NO_LIBRARY, "gc-monitor": failed("gc-monitor", 127)}, ("127",)),
        ({CHILD: NO_LIBRARY, "gc-monitor": b"what?\n"}, ("gc-monitor",)),
    ],
)
async def test_what_cannot_be_asked_is_said(tmp_path, answers, said):
    health = await read_health(node(tmp_path, answers), NOWHERE, False, 5.0)
    assert missing_facts(health.trouble, *said) == []
    assert (health.unhealthy, health.monitored) == ((), None)


@pytest.mark.parametrize("mode", ["active", "all"])
async def test_the_child_prints_what_the_library_answers(tmp_path, mode):
    (tmp_path / "gcipuinfo.py").write_text(LIBRARY)
    output = await LocalCommands().run(
        [sys.executable, gcipuinfo_child.__file__, mode], timeout_s=30.0, environment={"PYTHONPATH": str(tmp_path)}
    )
    assert (output.exit_code, output.stdout.decode()) == (0, f'{{"hosts": {{"{mode}": []}}}}\n')


async def test_the_child_says_that_there_is_no_library():
    output = await LocalCommands().run([sys.executable, gcipuinfo_child.__file__, "active"], timeout_s=30.0)
    assert output.exit_code == gcipuinfo_child.NO_LIBRARY
    assert b"gcipuinfo" in output.stderr


async def test_the_library_never_meets_the_files_beside_the_child(tmp_path):
    (tmp_path / "gcipuinfo.py").write_text("from attributes import SPEED\n" + LIBRARY)
    (tmp_path / "attributes.py").write_text("SPEED = 1\n")
    output = await LocalCommands().run(
        [sys.executable, gcipuinfo_child.__file__, "all"], timeout_s=30.0, environment={"PYTHONPATH": str(tmp_path)}
    )
    assert (output.exit_code, output.stderr) == (0, b"")


def test_the_child_in_this_process(monkeypatch, tmp_path, capsys):
    assert gcipuinfo_child.main(["active"]) == gcipuinfo_child.NO_LIBRARY
    (tmp_path / "gcipuinfo.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    assert gcipuinfo_child.main(["all"]) == 0
    assert capsys.readouterr().out == '{"hosts": {"all": []}}\n'
    monkeypatch.delitem(sys.modules, "gcipuinfo")


def test_the_child_is_written_for_the_python_of_an_old_sdk():
    source = Path(gcipuinfo_child.__file__).read_text()
    ast.parse(source, feature_version=(3, 6))
