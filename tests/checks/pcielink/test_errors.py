"""AER and replay counters are judged by their rise, and a device that was there must be there."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, mangled
from tests.checks.node_over_time import NodeOverTime
from tests.checks.pcielink.machines import BRIDGE, CX7, NVME, ROOT_PORT, Machine, one_gpu
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.nvidia.gpu import Gpu, Pcie
from muster_checks.pcielink import PcielinkParameters
from muster_checks.pcielink.errors import parse
from muster_checks.pcielink.judge import counters, judge
from muster_checks.pcielink.sysfs import read_node

GPU, DOWN, PORT = "0000:04:00.0", "0000:02:01.0", "0000:00:01.0"


class Watched(NodeOverTime):
    def __init__(self, root: Path, every_s: float = 60.0) -> None:
        super().__init__(root)
        self.every_s = every_s

    def findings(self, replays: int | None = None) -> list[Finding]:
        self.now += self.every_s
        gpus = {} if replays is None else {GPU: Gpu(index=1, address=GPU, pcie=Pcie(replays=replays))}
        reading = read_node(self.view)
        self.view.history.note("pcielink", counters(reading, gpus))
        return judge(reading, self.view.history.of("pcielink"), gpus, PcielinkParameters(), self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = one_gpu(tmp_path)
    machine.add("0000:02:02.0", BRIDGE, "0000:01:00.0").add("0000:07:00.0", CX7, "0000:02:02.0", infiniband="mlx5_0")
    machine.add("0000:a0:01.0", ROOT_PORT).add("0000:a1:00.0", NVME, "0000:a0:01.0", nvme="nvme0")
    for address in (GPU, DOWN, PORT):
        machine.count(address)
    return machine


def test_high_counters_that_stand_still_are_sound(machine: Machine) -> None:
    machine.count(GPU, RxErr=100_000, CmpltTO=500, DLP=3)
    watched = Watched(machine.root)
    assert watched.bad() == watched.bad() == []


def test_a_fatal_error_fails_for_an_hour_and_then_no_more(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.count(GPU, DLP=1)
    found = [f for f in watched.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason, f.fault_class) for f in found] == [
        (f"gpu/{GPU}", Verdict.FAIL, "PcieFatal", FaultClass.REBOOT)
    ]
    assert missing_facts(found[0].message, "1", "60 min", "DLP 1") == []
    for _ in range(59):
        assert watched.bad() == [(f"gpu/{GPU}", Verdict.FAIL, "PcieFatal")]
    watched.findings()
    assert watched.bad() == []


def test_a_nonfatal_error_warns(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.count(GPU, CmpltTO=2)
    assert watched.bad() == [(f"gpu/{GPU}", Verdict.WARN, "PcieNonFatal")]


def test_a_few_corrected_errors_a_minute_are_fine(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    for minute in range(1, 20):
        machine.count(GPU, RxErr=8 * minute)
        assert watched.bad() == []


def test_many_corrected_errors_warn_with_their_rate(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.count(GPU, BadTLP=30, Timeout=60)
    found = [f for f in watched.findings() if f.verdict is not Verdict.PASS]
    assert [(f.component, f.verdict, f.reason) for f in found] == [(f"gpu/{GPU}", Verdict.WARN, "PcieErrors")]
    assert [(m.value, m.unit, m.threshold) for m in found[0].measurements] == [(90.0, "/min", 8.0)]


def test_a_person_who_looks_for_a_second_sees_a_link_that_errs_right_now(machine: Machine) -> None:
    watched = Watched(machine.root, every_s=1.0)
    watched.findings()
    machine.count(GPU, RxErr=8)
    assert watched.bad() == []
    machine.count(GPU, RxErr=17)
    assert watched.bad() == [(f"gpu/{GPU}", Verdict.WARN, "PcieErrors")]


def test_advisory_errors_of_probing_do_not_count(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.count(GPU, NonFatalErr=10_000, HeaderOF=10_000)
    assert watched.bad() == []


def test_errors_of_a_bridge_are_the_bridges(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.count(DOWN, DLP=1, RxErr=100)
    assert watched.bad() == [
        (f"pci/{DOWN}", Verdict.FAIL, "PcieFatal"),
        (f"pci/{DOWN}", Verdict.WARN, "PcieErrors"),
    ]


def test_a_root_port_tells_of_a_fatal_error_that_no_device_counts(machine: Machine) -> None:
    machine.count(PORT, root_port_fatal=4)
    watched = Watched(machine.root)
    assert watched.bad() == []
    machine.count(PORT, root_port_fatal=5)
    assert watched.bad() == [(f"pci/{PORT}", Verdict.FAIL, "PcieFatal")]


def test_a_root_port_does_not_repeat_what_the_device_told(machine: Machine) -> None:
    machine.count(PORT, root_port_fatal=0)
    watched = Watched(machine.root)
    watched.findings()
    machine.count(PORT, root_port_fatal=1)
    machine.count(GPU, DLP=1)
    assert watched.bad() == [(f"gpu/{GPU}", Verdict.FAIL, "PcieFatal")]


def test_replays_that_the_driver_counts_warn_above_its_makers_limit(machine: Machine) -> None:
    watched = Watched(machine.root)
    assert watched.bad(replays=1000) == []
    assert watched.bad(replays=1008) == []
    assert watched.bad(replays=1030) == [(f"gpu/{GPU}", Verdict.WARN, "PcieReplays")]


def test_replays_that_aer_tells_too_are_told_once(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings(replays=0)
    machine.count(GPU, Rollover=50)
    assert watched.bad(replays=50) == [(f"gpu/{GPU}", Verdict.WARN, "PcieErrors")]


def test_a_sound_device_shows_its_rates(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings(replays=10)
    machine.count(GPU, RxErr=3)
    found = next(f for f in watched.findings(replays=12) if f.component == f"gpu/{GPU}")
    assert [(m.name, m.value, m.threshold) for m in found.measurements[2:]] == [
        ("link errors", 3.0, 8.0),
        ("replays", 2.0, 8.0),
    ]


def test_a_nic_that_has_left_the_bus_warns_at_once_and_fails_after_three_minutes(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.remove("0000:07:00.0")
    found = [watched.bad() for _ in range(4)]
    assert (
        found == [[("nic/mlx5_0", Verdict.WARN, "DeviceGone")]] * 2 + [[("nic/mlx5_0", Verdict.FAIL, "DeviceGone")]] * 2
    )


def test_volumes_come_and_go_and_lost_gpus_are_another_checks(machine: Machine) -> None:
    watched = Watched(machine.root, every_s=600.0)
    watched.findings()
    machine.remove("0000:a1:00.0")
    machine.remove(GPU)
    assert watched.bad() == []


def test_network_cards_of_clouds_come_and_go(machine: Machine) -> None:
    machine.set("0000:07:00.0", vendor="0x1d0f")
    watched = Watched(machine.root, every_s=600.0)
    watched.findings()
    machine.remove("0000:07:00.0")
    assert watched.bad() == []


def test_in_a_virtual_machine_devices_come_and_go(machine: Machine) -> None:
    (machine.root / "proc").mkdir()
    (machine.root / "proc/cpuinfo").write_text("flags : fpu hypervisor\n")
    watched = Watched(machine.root, every_s=600.0)
    watched.findings()
    machine.remove("0000:07:00.0")
    assert watched.bad() == []


def test_a_device_that_came_back_is_no_longer_gone(machine: Machine) -> None:
    watched = Watched(machine.root)
    watched.findings()
    machine.remove("0000:07:00.0")
    assert watched.bad() != []
    link = machine.root / "sys/bus/pci/devices/0000:07:00.0"
    link.symlink_to(machine.root / machine.places["0000:07:00.0"].lstrip("/"))
    assert watched.bad() == []


OLD = """Receiver Error 2
Bad TLP 0
RELAY_NUM Rollover 7
Replay Timer Timeout 0
Advisory Non-Fatal 0
TOTAL_ERR_COR 2"""


def test_the_names_of_older_kernels_are_known(machine: Machine) -> None:
    assert parse(OLD) == {
        "Receiver Error": 2,
        "Bad TLP": 0,
        "RELAY_NUM Rollover": 7,
        "Replay Timer Timeout": 0,
        "Advisory Non-Fatal": 0,
        "TOTAL_ERR_COR": 2,
    }
    machine.set(GPU, aer_dev_correctable=OLD)
    watched = Watched(machine.root)
    watched.findings()
    machine.set(GPU, aer_dev_correctable=OLD.replace("Rollover 7", "Rollover 70"))
    assert watched.bad() == [(f"gpu/{GPU}", Verdict.WARN, "PcieErrors")]


def test_without_a_total_the_parts_are_added(machine: Machine) -> None:
    machine.set(GPU, aer_dev_fatal="DLP 0\nSDES 0\n")
    watched = Watched(machine.root)
    watched.findings()
    machine.set(GPU, aer_dev_fatal="DLP 1\nSDES 0\n")
    assert watched.bad() == [(f"gpu/{GPU}", Verdict.FAIL, "PcieFatal")]


@pytest.mark.parametrize("text", [*TEXTS, *mangled(OLD.encode())])
def test_rubbish_in_counters_is_never_a_fault(machine: Machine, text: bytes) -> None:
    watched = Watched(machine.root)
    watched.findings()
    for kind in ("correctable", "nonfatal", "fatal"):
        (machine.root / machine.places[GPU].lstrip("/") / f"aer_dev_{kind}").write_bytes(text)
    (machine.root / machine.places[PORT].lstrip("/") / "aer_rootport_total_err_fatal").write_bytes(text)
    # a number behind a word is a counter, whoever wrote it; everything else is nothing
    if not any(char.isdigit() for char in text.decode("utf-8", "replace")):
        assert watched.bad() == []
    watched.findings()


def test_a_kernel_that_keeps_only_some_counters_is_judged_by_those(machine: Machine) -> None:
    for kind in ("nonfatal", "correctable"):
        (machine.root / machine.places[GPU].lstrip("/") / f"aer_dev_{kind}").unlink()
    watched = Watched(machine.root)
    watched.findings()
    machine.set(GPU, aer_dev_fatal="DLP 1\nTOTAL_ERR_FATAL 1")
    assert watched.bad() == [(f"gpu/{GPU}", Verdict.FAIL, "PcieFatal")]


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_is_counters_or_none(text: str) -> None:
    counts = parse(text)
    assert counts is None or all(count >= 0 for count in counts.values())
