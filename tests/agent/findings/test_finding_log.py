"""One line for one event, whatever a kernel line holds."""

import json

import pytest

from muster_agent.findings import finding_log
from muster_agent.findings.ledger import Transition, TransitionKind
from muster_agent.metrics.node_hardware import read_hardware
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Origin, Verdict
from muster_kube.process.logs import configure_logging

FINDING = Finding(
    component="gpu/0", verdict=Verdict.FAIL, reason="Xid79", message="off the bus", occurrence=3, origin=Origin.KERNEL
)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_finding_is_one_line_with_node_and_whole_kernel_line(capsys, log_format):
    configure_logging(log_format)
    finding_log.log_transition(
        "n1", "dmesg", Transition(TransitionKind.OPENED, FINDING, "[1.5] NVRM: Xid 79\nforged: second line")
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "`n1`" in line
    assert "dmesg FAIL: [1.5] NVRM: Xid 79" in line
    if log_format == "json":
        entry = json.loads(line)
        assert (entry["node"], entry["reason"], entry["occurrence"], entry["level"]) == ("n1", "Xid79", 3, "ERROR")
    else:
        assert line.endswith("occurrence=3 origin=kernel")


def test_the_log_line_of_a_cleared_finding_names_how_it_was_cleared(capsys):
    configure_logging("text")
    finding_log.log_transition("n1", "dmesg", Transition(TransitionKind.CLEARED, FINDING, "", "request"))
    line = capsys.readouterr().err
    assert "INFO" in line
    assert "`n1`" in line
    assert f"dmesg FAIL: {FINDING.message}" in line
    assert line.endswith("how=request\n")


def test_hardware_is_read_where_it_is_and_empty_where_it_is_not(tmp_path):
    assert read_hardware(NodeView(tmp_path)) == {"cpumodel": "", "gpumodel": ""}
    (tmp_path / "proc/driver/nvidia/gpus/0000:3b:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/gpus/0000:3b:00.0/information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n"
    )
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\n")
    assert read_hardware(NodeView(tmp_path)) == {"cpumodel": "Some CPU @ 2.0GHz", "gpumodel": "NVIDIA H100 80GB HBM3"}
