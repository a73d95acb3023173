"""The devices that an operator expects."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, run_probe
from muster_checks.base.vocabulary import Verdict
from muster_checks.inventory import INVENTORY, InventoryParameters
from muster_checks.inventory.judge import ExpectedDevices, PresentDevices, judge
from muster_checks.inventory.probe import load_expected
from muster_checks.testing.recorded import lay_out, node

PCI = "/sys/bus/pci/devices"


def gpu(tmp_path: Path, *addresses: str) -> Path:
    for address in addresses:
        lay_out(
            tmp_path,
            {
                f"{PCI}/{address}/vendor": "0x10de",
                f"{PCI}/{address}/device": "0x2330",
                f"{PCI}/{address}/class": "0x030200",
            },
        )
    return tmp_path


async def test_this_machines_loopback_is_there(tmp_path: Path):
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("[{kind: net, match: lo, count: 1}]")
    result = await run_probe(INVENTORY, NodeView(), InventoryParameters(expected=manifest))
    assert [(f.component, f.verdict) for f in result.findings] == [("net/lo", Verdict.PASS)]


async def test_where_nothing_is_expected_nothing_is_judged():
    assert (await run_probe(INVENTORY, NodeView(), InventoryParameters())).reason == "NothingExpected"


async def test_what_is_expected_and_lacking_is_counted(tmp_path: Path):
    gpu(tmp_path, "0000:3b:00.0")
    lay_out(tmp_path, {"/sys/block/nvme0n1/size": 1, "/sys/class/infiniband/mlx5_0/x": 1, "/sys/class/net/eth0/mtu": 1})
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        "- {kind: pci, match: '10DE:2330', count: 2}\n"
        "- {kind: block, match: 'nvme*n1', count: 1}\n"
        "- {kind: net, match: eth0, count: 1}\n"
        "- {kind: infiniband, match: 'mlx5_*', count: 4}\n"
    )
    result = await run_probe(INVENTORY, node(tmp_path), InventoryParameters(expected=manifest))
    by_component = {f.component: f for f in result.findings}
    assert by_component["pci/10DE:2330"].message == "1 of 2 pci devices 10DE:2330: 0000:3b:00.0"
    assert {name for name, f in by_component.items() if f.verdict is Verdict.FAIL} == {
        "pci/10DE:2330",
        "infiniband/mlx5_*",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[{kind: usb, match: x, count: 1}]", "[0].kind: 'usb': "),
        ("[{kind: pci, match: x}]", "count"),
        ("[{kind: pci, match: x, count: 1, colour: red}]", "colour"),
        ("{kind: pci", "while parsing"),
        ("just text", "array"),
    ],
)
def test_a_manifest_that_is_wrong_says_what_and_where(tmp_path: Path, text: str, told: str):
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(text)
    with pytest.raises(CannotTell) as caught:
        load_expected(manifest)
    assert told in caught.value.message
    assert str(manifest) in caught.value.message


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(CannotTell, match="no-such"):
        load_expected(tmp_path / "no-such")


async def test_where_sys_cannot_be_read_nothing_is_called_missing(tmp_path: Path):
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("[{kind: pci, match: '10de:*', count: 8}]")
    result = await run_probe(INVENTORY, node(tmp_path), InventoryParameters(expected=manifest))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NotReadable")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(["eth0", "eth1", "mlx5_0"]), unique=True), st.integers(0, 4))
def test_as_many_as_expected_or_more_pass(names: list[str], count: int):
    finding = judge(ExpectedDevices("net", "*", count), PresentDevices(pci={}, net=names))
    assert (finding.verdict is Verdict.PASS) == (len(names) >= count)
