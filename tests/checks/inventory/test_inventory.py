"""The devices that should be there, and those that have gone."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.recorded import lay_out, node

from muster_checks.declaration import NodeView
from muster_checks.inventory import INVENTORY, InventoryParameters
from muster_checks.inventory.devices import count_missed, load_expected, read_devices
from muster_checks.running import CannotTell, run_probe
from muster_checks.vocabulary import FaultClass, Verdict

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


def remove(tmp_path: Path, address: str) -> None:
    folder = tmp_path / PCI.lstrip("/") / address
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


async def test_this_machines_devices_are_all_there():
    result = await run_probe(INVENTORY, NodeView(), InventoryParameters())
    assert result.verdict is Verdict.PASS


async def test_a_device_that_goes_is_unknown_first_and_fails_when_it_stays_away(tmp_path: Path):
    view = node(gpu(tmp_path, "0000:3b:00.0", "0000:5e:00.0"))
    verdicts = []
    for run in range(5):
        if run == 1:
            remove(tmp_path, "0000:5e:00.0")
        result = await run_probe(INVENTORY, view, InventoryParameters())
        verdicts.append({f.component: f.verdict for f in result.findings}["gpu/0000:5e:00.0"])
    assert verdicts == [Verdict.PASS, Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.FAIL, Verdict.FAIL]
    gone = result.findings[0]
    assert (gone.reason, gone.fault_class) == ("DeviceGone", FaultClass.REBOOT)
    gpu(tmp_path, "0000:5e:00.0")
    assert (await run_probe(INVENTORY, view, InventoryParameters())).verdict is Verdict.PASS


async def test_a_device_that_comes_back_in_time_starts_the_count_anew(tmp_path: Path):
    view = node(gpu(tmp_path, "0000:3b:00.0"))
    for _ in range(4):
        for change in (remove, gpu):
            change(tmp_path, "0000:3b:00.0")
            result = await run_probe(INVENTORY, view, InventoryParameters(confirmations=2))
            assert result.verdict is not Verdict.FAIL


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
        ("[{kind: usb, match: x, count: 1}]", "[0].kind: 'usb': expected pci, block, net or infiniband"),
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


async def test_without_a_pci_bus_nothing_is_known(tmp_path: Path):
    assert (await run_probe(INVENTORY, node(tmp_path), InventoryParameters())).verdict is Verdict.UNKNOWN


def test_a_bus_without_devices_that_matter_is_fine(tmp_path: Path):
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert read_devices(node(tmp_path)).watched == {}


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sets(st.sampled_from("abc")), max_size=12))
def test_the_count_is_that_of_the_last_runs_in_a_row_without_the_device(runs: list[set[str]]):
    from muster_checks.inventory.devices import Devices

    missed: dict[str, float] = {}
    for here in runs:
        missed = count_missed(Devices(pci={}, watched={name: name for name in here}), missed)
    for name in missed:
        since = next(place for place, here in enumerate(reversed(runs)) if name in here)
        assert missed[name] == since
