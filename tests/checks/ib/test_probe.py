"""The whole check: on a node, on a recording of one, on rubbish."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, mangled
from tests.checks.ib.conftest import Node
from tests.checks.ib.port_tree import pack
from tests.shared_data import SharedData

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.ib import IB, IbParameters
from muster_checks.ib.sysfs import parse_rate
from muster_checks.testing.recorded import lay_out, node

AT_ONCE = IbParameters(first_interval_s=0.0)


async def test_a_healthy_node_passes(h100: Node) -> None:
    result = await run_probe(IB, h100.view, AT_ONCE)
    assert (result.verdict, len(result.findings)) == (Verdict.PASS, 9)


async def test_a_port_that_is_down_on_a_node_that_has_just_booted_warns(h100: Node) -> None:
    h100.down("mlx5_4")
    lay_out(h100.root, {"/proc/uptime": "30.00 100.00"})
    assert (await run_probe(IB, h100.view, AT_ONCE)).verdict is Verdict.WARN
    lay_out(h100.root, {"/proc/uptime": "3000.00 100.00"})
    assert (await run_probe(IB, h100.view, AT_ONCE)).verdict is Verdict.FAIL


@pytest.mark.parametrize("made", [False, True])
async def test_a_node_without_devices_is_skipped(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    result = await run_probe(IB, node(tmp_path), AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoDevice")


async def test_a_node_whose_devices_have_other_names_is_skipped(h100: Node) -> None:
    result = await run_probe(IB, h100.view, IbParameters(first_interval_s=0.0, ports="hfi1_*"))
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoDevice")
    assert "hfi1_*" in result.message


async def test_a_node_that_uses_no_port_is_skipped(empty: Node) -> None:
    empty.add("mlx5_0", state="1: DOWN", phys_state="3: Disabled")
    result = await run_probe(IB, empty.view, AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NotInUse")


async def test_expectations_that_cannot_be_read_judge_nothing(h100: Node, tmp_path: Path) -> None:
    result = await run_probe(IB, h100.view, IbParameters(first_interval_s=0.0, expected=tmp_path / "gone.yaml"))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "BadExpectations")


async def test_this_machine_has_an_answer() -> None:
    result = await run_probe(IB, NodeView(), AT_ONCE)
    assert result.reason != "ProbeFailed"


@pytest.fixture
def recording(h100: Node) -> bytes:
    """Of a healthy node."""
    return pack(h100.root / "sys/class/infiniband")


def test_a_recording_of_a_healthy_node_passes(recording: bytes) -> None:
    result = run_recorded(IB, recording, AT_ONCE)
    assert result is not None
    assert (result.verdict, len(result.findings)) == (Verdict.PASS, 9)


def test_the_recorded_healthy_node_passes(shared_data: SharedData) -> None:
    result = run_recorded(IB, shared_data.read("infiniband/sys-class-infiniband-h100.tar.xz"), AT_ONCE)
    assert result is not None
    assert (result.verdict, len(result.findings)) == (Verdict.PASS, 9)


@pytest.mark.parametrize("folder", ["sys/class/infiniband", "node-3/sys/class/infiniband", "infiniband", "."])
def test_a_recorded_fault_fails_wherever_the_folder_lies(h100: Node, folder: str) -> None:
    h100.down("mlx5_4")
    result = run_recorded(IB, pack(h100.root / "sys/class/infiniband", folder), AT_ONCE)
    assert result is not None
    assert (result.verdict, result.reason) == (Verdict.FAIL, "PortDown")


def test_a_tree_of_another_kind_is_not_ours(tmp_path: Path) -> None:
    lay_out(tmp_path, {"/sys/class/net/eth0/mtu": 1500})
    assert run_recorded(IB, pack(tmp_path / "sys", "sys"), AT_ONCE) is None


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_is_not_ours(text: bytes) -> None:
    assert run_recorded(IB, text, AT_ONCE) is None


def test_a_recording_cut_short_is_unknown_or_not_ours(recording: bytes) -> None:
    for part in mangled(recording):
        result = run_recorded(IB, part, AT_ONCE)
        assert result is None or result.verdict in (Verdict.UNKNOWN, Verdict.PASS)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["state", "phys_state", "rate", "link_layer"])
def test_rubbish_in_a_port_is_never_a_fault(one: Node, text: bytes, name: str) -> None:
    (one.root / "sys/class/infiniband/mlx5_4/ports/1" / name).write_bytes(text)
    assert all(verdict is not Verdict.FAIL for _, verdict, _ in one.bad())


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_rate_or_none(text: str) -> None:
    rate, lanes = parse_rate(text)
    assert (rate is None) == (lanes is None)
