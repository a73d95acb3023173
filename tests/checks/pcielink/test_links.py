"""Lanes and speeds: what is proven bad fails, what may be made so warns, what saves power passes."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.checks.node_over_time import NodeOverTime
from tests.checks.pcielink.machines import (
    BRIDGE,
    C600,
    CX7,
    H100,
    MI300,
    NVME,
    QEMU_PORT,
    ROOT_PORT,
    Machine,
    eight_gpus,
    one_gpu,
)
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.nvidia.gpu import ClocksEvent, Gpu, GpuClocks, Pcie
from muster_checks.pcielink import PCIELINK, PcielinkParameters
from muster_checks.pcielink.judge import counters, judge
from muster_checks.pcielink.sysfs import read_node

GPU, NIC, DISK = "gpu/0000:04:00.0", "nic/mlx5_0", "disk/nvme0"


class Watched(NodeOverTime):
    def findings(self, gpus: Mapping[str, Gpu] | None = None) -> list[Finding]:
        self.now += 60.0
        reading = read_node(self.view)
        self.view.history.note("pcielink", counters(reading, gpus or {}))
        seen = self.view.history.of("pcielink")
        return judge(reading, seen, gpus or {}, PcielinkParameters(), self.now)


def test_a_sound_node_passes_with_the_figures_of_each_device(tmp_path: Path) -> None:
    eight_gpus(tmp_path)
    found = Watched(tmp_path).findings()
    assert len(found) == 13
    assert {f.verdict for f in found} == {Verdict.PASS}
    gpu = next(f for f in found if f.component == GPU)
    assert [(m.name, m.value, m.unit, m.threshold) for m in gpu.measurements] == [
        ("lanes", 16, "", 16),
        ("speed", 32.0, "GT/s", 32.0),
    ]


def test_a_gpu_with_fewer_lanes_than_all_its_siblings_fails_and_names_the_hop(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    machine.set("0000:04:00.0", current_link_width=8)
    found = [f for f in Watched(tmp_path).findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason, f.fault_class) for f in found] == [
        (GPU, Verdict.FAIL, "LinkWidth", FaultClass.REBOOT)
    ]
    assert missing_facts(found[0].message, "x8", "x16", "0000:02:01.0", "0000:04:00.0") == []
    assert missing_facts(found[0].message, "7") == []


def test_gpus_that_are_all_narrow_may_be_wired_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for number in range(3):
        port = f"0000:00:0{number}.0"
        machine.add(port, ROOT_PORT).add(
            f"0000:1{number}:00.0", H100, port, ("32.0 GT/s PCIe", "32.0 GT/s PCIe", 8, 16)
        )
    assert [(verdict, reason) for _, verdict, reason in Watched(tmp_path).bad()] == [(Verdict.WARN, "LinkWidth")] * 3


def test_a_lone_gpu_with_fewer_lanes_warns(tmp_path: Path) -> None:
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT)
    machine.add("0000:01:00.0", H100, "0000:00:01.0", ("32.0 GT/s PCIe", "32.0 GT/s PCIe", 8, 16))
    found = Watched(tmp_path).findings()
    assert [(f.verdict, f.reason, f.fault_class) for f in found] == [(Verdict.WARN, "LinkWidth", FaultClass.CONTACT)]


@pytest.mark.parametrize(("address", "component"), [("0000:07:00.0", NIC), ("0000:04:00.0", GPU)])
def test_lanes_that_were_there_earlier_are_proof(tmp_path: Path, address: str, component: str) -> None:
    machine = eight_gpus(tmp_path)
    watched = Watched(tmp_path)
    assert watched.bad() == []
    machine.set(address, current_link_width=4)
    found = [f for f in watched.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [(component, Verdict.FAIL, "LinkWidth")]
    assert "earlier x16" in found[0].message
    machine.set(address, current_link_width=16)
    assert watched.bad() == []


def test_a_nic_in_a_slot_narrower_than_itself_is_no_fault(tmp_path: Path) -> None:
    slot = ("16.0 GT/s PCIe", "16.0 GT/s PCIe", 8, 8)
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT, link=slot)
    machine.add("0000:01:00.0", CX7, "0000:00:01.0", ("16.0 GT/s PCIe", "32.0 GT/s PCIe", 8, 16), net="eth0")
    found = Watched(tmp_path).findings()
    assert [(f.component, f.verdict) for f in found] == [("nic/eth0", Verdict.PASS)]
    assert [m.threshold for m in found[0].measurements] == [8, 16.0]


def test_a_card_narrower_than_its_port_is_no_fault_nor_is_the_way_through_the_switch(tmp_path: Path) -> None:
    machine = one_gpu(tmp_path)
    card = ("16.0 GT/s PCIe", "16.0 GT/s PCIe", 8, 8)
    machine.add("0000:02:02.0", BRIDGE, "0000:01:00.0", ("16.0 GT/s PCIe", "32.0 GT/s PCIe", 8, 16))
    machine.add("0000:05:00.0", CX7, "0000:02:02.0", card, net="eth0")
    assert Watched(tmp_path).bad() == []


def test_nics_of_one_kind_in_different_slots_are_no_proof(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    machine.set("0000:07:00.0", current_link_width=8)
    assert Watched(tmp_path).bad() == [(NIC, Verdict.WARN, "LinkWidth")]


def test_a_disk_never_fails_a_node_by_its_link(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    watched = Watched(tmp_path)
    watched.findings()
    machine.set("0000:a1:00.0", current_link_width=2, current_link_speed="8.0 GT/s PCIe")
    assert watched.bad() == [(DISK, Verdict.WARN, "LinkWidth"), (DISK, Verdict.WARN, "LinkSpeed")]


@pytest.mark.parametrize("model", [H100, MI300])
def test_an_idle_gpu_may_be_slow(tmp_path: Path, model: str) -> None:
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT)
    machine.add("0000:01:00.0", model, "0000:00:01.0")
    watched = Watched(tmp_path)
    watched.findings()
    machine.set("0000:01:00.0", current_link_speed="2.5 GT/s PCIe")
    assert watched.bad() == []


def _gpu(events: tuple[ClocksEvent, ...] | None, generation: int | None, best: int | None = 5) -> dict[str, Gpu]:
    address = "0000:04:00.0"
    pcie = Pcie(generation=generation, generation_max=best)
    return {address: Gpu(index=1, address=address, clocks=GpuClocks(events=events), pcie=pcie)}


def test_a_working_gpu_must_not_be_slow(tmp_path: Path) -> None:
    eight_gpus(tmp_path)
    found = [
        f for f in Watched(tmp_path).findings(_gpu((ClocksEvent.SW_POWER_CAP,), 1)) if f.verdict is not Verdict.PASS
    ]
    assert [(f.component, f.verdict, f.reason) for f in found] == [(GPU, Verdict.WARN, "LinkSpeed")]
    assert "generation 1 of 5" in found[0].message


@pytest.mark.parametrize(
    "gpus",
    [_gpu((ClocksEvent.IDLE,), 1), _gpu(None, 1), _gpu((), None), _gpu((), 1, None), _gpu((), 5), {}],
)
def test_a_gpu_that_is_idle_or_says_nothing_is_not_judged_by_its_speed(tmp_path: Path, gpus: Mapping[str, Gpu]) -> None:
    one_gpu(tmp_path).set("0000:04:00.0", current_link_speed="2.5 GT/s PCIe")
    assert Watched(tmp_path).bad(gpus) == []


def test_a_nic_that_is_slow_warns_and_fails_once_it_was_faster(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    machine.set("0000:07:00.0", current_link_speed="8.0 GT/s PCIe")
    assert Watched(tmp_path).bad() == [(NIC, Verdict.WARN, "LinkSpeed")]
    machine.set("0000:07:00.0", current_link_speed="32.0 GT/s PCIe")
    watched = Watched(tmp_path)
    watched.findings()
    machine.set("0000:07:00.0", current_link_speed="8.0 GT/s PCIe")
    assert watched.bad() == [(NIC, Verdict.FAIL, "LinkSpeed")]


def test_an_ipu_card_does_not_slow_down_to_save_power(tmp_path: Path) -> None:
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT)
    machine.add("0000:01:00.0", C600, "0000:00:01.0", ("2.5 GT/s PCIe", "16.0 GT/s PCIe", 16, 16))
    assert Watched(tmp_path).bad() == [("pci/0000:01:00.0", Verdict.WARN, "LinkSpeed")]


def test_a_switch_whose_uplink_is_narrow_is_told_once_with_what_hangs_on_it(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    watched = Watched(tmp_path)
    machine.set("0000:01:00.0", current_link_width=8, current_link_speed="16.0 GT/s PCIe")
    found = [f for f in watched.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [
        ("pci/0000:00:01.0", Verdict.WARN, "LinkWidth"),
        ("pci/0000:00:01.0", Verdict.WARN, "LinkSpeed"),
    ]
    assert missing_facts(found[0].message, "gpu/0000:03:00.0, gpu/0000:04:00.0, gpu/0000:05:00.0 …") == []


def test_a_switch_whose_uplink_was_better_fails(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    watched = Watched(tmp_path)
    watched.findings()
    machine.set("0000:01:00.0", current_link_width=8)
    assert watched.bad() == [("pci/0000:00:01.0", Verdict.FAIL, "LinkWidth")]


def test_a_switch_on_the_gpus_own_card_slows_down_with_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT)
    machine.add("0000:01:00.0", "1002:1478", "0000:00:01.0", ("2.5 GT/s PCIe", "16.0 GT/s PCIe", 16, 16))
    machine.add("0000:02:00.0", "1002:1479", "0000:01:00.0").add("0000:03:00.0", MI300, "0000:02:00.0")
    assert Watched(tmp_path).bad() == []


def test_a_port_of_a_virtual_machine_says_nothing_of_the_slot(tmp_path: Path) -> None:
    machine = Machine(tmp_path).add("0000:00:01.0", QEMU_PORT, link=("16.0 GT/s PCIe", "16.0 GT/s PCIe", 32, 32))
    machine.add("0000:01:00.0", CX7, "0000:00:01.0", ("8.0 GT/s PCIe", "32.0 GT/s PCIe", 8, 16))
    watched = Watched(tmp_path)
    assert watched.bad() == []
    machine.set("0000:01:00.0", current_link_width=4)  # but what it was is proof even there
    assert watched.bad() == [("nic/0000:01:00.0", Verdict.FAIL, "LinkWidth")]


def test_a_virtual_switch_above_a_real_device_is_not_judged(tmp_path: Path) -> None:
    slow = ("2.5 GT/s PCIe", "16.0 GT/s PCIe", 1, 16)
    machine = Machine(tmp_path).add("0000:00:01.0", QEMU_PORT).add("0000:01:00.0", BRIDGE, "0000:00:01.0", slow)
    machine.add("0000:02:00.0", BRIDGE, "0000:01:00.0").add("0000:03:00.0", CX7, "0000:02:00.0")
    assert Watched(tmp_path).bad() == []


OFF_THE_BUS = ("Unknown", "Unknown", 63, 63)


def test_a_device_that_tells_nothing_is_unknown_and_the_others_are_judged(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    files = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
    for address in ("0000:04:00.0", "0000:02:01.0"):
        machine.set(address, **dict(zip(files, OFF_THE_BUS, strict=True)))
    machine.set("0000:05:00.0", current_link_width=8)
    assert Watched(tmp_path).bad() == [
        (GPU, Verdict.UNKNOWN, "NotReadable"),
        ("gpu/0000:05:00.0", Verdict.WARN, "LinkWidth"),
    ]


def test_the_port_above_tells_for_a_device_that_does_not(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    machine.set("0000:04:00.0", current_link_speed="Unknown speed", current_link_width=0)
    assert Watched(tmp_path).bad() == []


def test_in_a_virtual_machine_devices_that_tell_nothing_are_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.add("0000:01:00.0", H100, link=OFF_THE_BUS).add(
        "0000:02:00.0", NVME, link=("8.0 GT/s PCIe", "8.0 GT/s PCIe", 4, 4)
    )
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu ssse3 hypervisor lahf_lm\n")
    found = Watched(tmp_path).findings()
    assert [(f.component, f.verdict) for f in found] == [("disk/0000:02:00.0", Verdict.PASS)]


def test_in_a_virtual_machine_only_what_was_better_earlier_is_proof(tmp_path: Path) -> None:
    machine = one_gpu(tmp_path)
    machine.set("0000:04:00.0", current_link_speed="2.5 GT/s PCIe", current_link_width=8)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu ssse3 hypervisor lahf_lm\n")
    watched = Watched(tmp_path)
    assert watched.bad(_gpu((), 1, 3)) == []
    machine.set("0000:04:00.0", current_link_width=4)
    assert watched.bad(_gpu((), 1, 3)) == [(GPU, Verdict.FAIL, "LinkWidth")]


def test_a_device_that_is_switched_off_by_intent_passes(tmp_path: Path) -> None:
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT).add("0000:01:00.0", NVME, "0000:00:01.0", OFF_THE_BUS)
    machine.set("0000:01:00.0", power_state="D3cold")
    found = Watched(tmp_path).findings()
    assert [(f.verdict, f.reason) for f in found] == [(Verdict.PASS, "Asleep")]


@pytest.mark.parametrize("width", ["", "N/A", "255", "-1", "0", "4000000000", "x16", "\0"])
@pytest.mark.parametrize("speed", ["", "Unknown", "1e999 GT/s", "-5 GT/s", "nan", "16,0 GT/s"])
def test_garbage_is_never_a_fault(tmp_path: Path, width: str, speed: str) -> None:
    machine = one_gpu(tmp_path)
    watched = Watched(tmp_path)
    watched.findings()
    machine.set("0000:04:00.0", current_link_width=width, current_link_speed=speed, max_link_width=width)
    assert all(verdict is not Verdict.FAIL for _, verdict, _ in watched.bad())


def test_what_has_no_link_files_has_no_finding(tmp_path: Path) -> None:
    Machine(tmp_path).add("0000:00:03.0", CX7, link=None, net="eth0")
    assert Watched(tmp_path).findings() == []


def test_the_declaration_is_a_light_snapshot_with_a_reader_of_samples() -> None:
    assert (PCIELINK.cost, PCIELINK.period_s) == ("light", 60.0)
    assert PCIELINK.recorded is not None
