"""The whole check: on this machine, on a node laid out, on a recorded /sys."""

import io
import tarfile
from pathlib import Path

import pytest
from tests.checks.bad_input import TEXTS
from tests.checks.nic.conftest import Node

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.nic import NIC, NicParameters
from muster_checks.testing.recorded import lay_out, node

AT_ONCE = NicParameters(first_interval_s=0.0)


async def test_a_sound_node_passes(fleet: Node) -> None:
    result = await run_probe(NIC, fleet.view, AT_ONCE)
    assert (result.verdict, len(result.findings)) == (Verdict.PASS, 5)


async def test_a_lost_link_fails_unless_the_node_has_just_booted(fleet: Node) -> None:
    fleet.set("ens1np0", carrier=0)
    assert (await run_probe(NIC, fleet.view, AT_ONCE)).verdict is Verdict.FAIL
    lay_out(fleet.root, {"/proc/uptime": "30.00 100.00"})
    assert (await run_probe(NIC, fleet.view, AT_ONCE)).verdict is Verdict.WARN


async def test_a_node_without_real_interfaces_is_skipped(tmp_path: Path, empty: Node) -> None:
    empty.virtual("docker0")
    result = await run_probe(NIC, empty.view, AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoDevice")


async def test_a_node_that_uses_no_interface_is_skipped(empty: Node) -> None:
    empty.add("eno1")
    empty.unplugged("eno1")
    result = await run_probe(NIC, empty.view, AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NotInUse")
    assert "eno1" in result.message


async def test_no_class_folder_is_no_device(tmp_path: Path) -> None:
    assert (await run_probe(NIC, node(tmp_path), AT_ONCE)).verdict is Verdict.SKIP


async def test_this_machine_has_a_steady_answer() -> None:
    view = NodeView()
    verdicts = {(await run_probe(NIC, view, AT_ONCE)).verdict for _ in range(3)}
    assert len(verdicts) == 1
    assert verdicts <= {Verdict.PASS, Verdict.WARN, Verdict.SKIP}


def _packed(root: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as archive:
        archive.add(root / "sys", arcname="sys")
    return out.getvalue()


def test_a_recorded_tree_is_judged(fleet: Node) -> None:
    fleet.set("ens1np0", carrier=0)
    result = run_recorded(NIC, _packed(fleet.root), AT_ONCE)
    assert result is not None
    assert (result.verdict, result.reason, len(result.findings)) == (Verdict.FAIL, "LinkDown", 5)


def test_a_tree_of_another_kind_is_not_ours(tmp_path: Path) -> None:
    lay_out(tmp_path, {"/sys/class/infiniband/mlx5_0/fw_ver": "28"})
    assert run_recorded(NIC, _packed(tmp_path), AT_ONCE) is None


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_is_not_ours(text: bytes) -> None:
    assert run_recorded(NIC, text, AT_ONCE) is None
