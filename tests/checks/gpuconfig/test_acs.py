"""ACS of the switch ports above GPUs."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.nvidia.on_bus import CHILD, answer
from tests.checks.nvidia.samples_of import healthy, of

from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gpuconfig import GPUCONFIG, GpuconfigParameters
from muster_checks.gpuconfig.acs import AcsPort, acs_control, judge_ports, read_ports
from muster_checks.testing.recorded import lay_out, node

AER, ACS, SRIOV = 0x0001, 0x000D, 0x0010
ON = 0x1D  # what Linux sets with an IOMMU: source validation, both redirects, upstream forwarding
BARE_METAL, VIRTUAL, ARM = "flags\t\t: fpu vme", "flags\t\t: fpu vme hypervisor lahf_lm", "Features\t: fp asimd"


def space(capabilities: Sequence[tuple[int, int, int]], control: int = ON, size: int = 4096) -> bytes:
    """A configuration space with extended capabilities (id, place, next)."""
    raw = bytearray(4096)
    for number, place, following in capabilities:
        raw[place : place + 4] = (number | 1 << 16 | following << 20).to_bytes(4, "little")
        if number == ACS:
            raw[place + 4 : place + 8] = (0x5F | control << 16).to_bytes(4, "little")
    return bytes(raw[:size])


WITH_ACS = space([(AER, 0x100, 0x148), (ACS, 0x148, 0)])


@pytest.mark.parametrize(
    ("config", "control"),
    [
        (WITH_ACS, ON),
        (space([(ACS, 0x100, 0x148)], 0), 0),
        (space([(ACS, 0xFF8, 0), (AER, 0x100, 0xFF8)], 0x5), 0x5),
        (space([(AER, 0x100, 0x148), (SRIOV, 0x148, 0)]), 0),
        (space([]), 0),
        (space([(AER, 0x100, 0x40)]), 0),
        (WITH_ACS[:0x148], None),
        (WITH_ACS[:0x14E], None),
        (WITH_ACS[:256], None),
        (WITH_ACS[:64], None),
        (b"", None),
        (b"\xff" * 4096, None),
        (space([(AER, 0x100, 0x100)]), None),
        (space([(AER, 0x100, 0x200), (SRIOV, 0x200, 0x100)]), None),
    ],
    ids=str,
)
def test_the_control_register_is_found_or_not_told(config: bytes, control: int | None) -> None:
    assert acs_control(config) == control


@given(st.binary(max_size=4096) | st.binary(max_size=64).map(lambda part: part * 64))
@settings(max_examples=100, deadline=None)
def test_any_bytes_end_in_a_register_or_in_nothing(config: bytes) -> None:
    control = acs_control(config)
    assert control is None or 0 <= control <= 0xFFFF


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(64, 1022), st.integers(0, 1023)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_list_of_capabilities_ends(links: list[tuple[int, int, int]]) -> None:
    config = space([(number, place * 4, following * 4) for number, place, following in [(AER, 64, 80), *links]])
    control = acs_control(config)
    assert control is None or 0 <= control <= 0xFFFF


@pytest.mark.parametrize(
    ("control", "verdict"),
    [
        (0, Verdict.PASS),
        (0x01, Verdict.PASS),
        (0x13, Verdict.PASS),
        (0x04, Verdict.WARN),
        (0x08, Verdict.WARN),
        (0x20, Verdict.WARN),
        (ON, Verdict.WARN),
        (ON | 0x40, Verdict.PASS),
    ],
)
def test_what_redirects_warns_but_for_devices_that_translate_addresses(control: int, verdict: Verdict) -> None:
    (finding,) = judge_ports([AcsPort("0000:16:00.0", "0000:17:00.0", control)])
    assert (finding.verdict, finding.component, finding.fault_class) == (verdict, "pci/0000:16:00.0", FaultClass.NONE)
    assert ("setpci -s 0000:16:00.0 ECAP_ACS+6.w=0" in finding.message) is (verdict is Verdict.WARN)
    assert len(finding.message.encode()) <= 256


GPU, NIC, BRIDGE = ("0x10de", "0x030200"), ("0x15b3", "0x020700"), ("0x1000", "0x060400")
SWITCHED = {
    "0000:14:01.0": (BRIDGE, ""),
    "0000:15:00.0": (BRIDGE, "0000:14:01.0"),
    "0000:16:00.0": (BRIDGE, "0000:14:01.0/0000:15:00.0"),
    "0000:17:00.0": (GPU, "0000:14:01.0/0000:15:00.0/0000:16:00.0"),
    "0000:16:01.0": (BRIDGE, "0000:14:01.0/0000:15:00.0"),
    "0000:18:00.0": (NIC, "0000:14:01.0/0000:15:00.0/0000:16:01.0"),
    "0000:60:01.0": (BRIDGE, ""),
    "0000:61:00.0": (GPU, "0000:60:01.0"),
}
"""A GPU and a NIC behind one switch, and a GPU at a root port of its own."""


def machine(root: Path, cpuinfo: str = BARE_METAL, config: bytes = WITH_ACS, without: Sequence[str] = ()) -> Path:
    lay_out(root, {"/proc/cpuinfo": f"processor\t: 0\n{cpuinfo}\n"})
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for address, ((vendor, code), above) in SWITCHED.items():
        if address in without:
            continue
        folder = f"/sys/devices/pci{(above or address)[:7]}/{above}/{address}"
        lay_out(root, {f"{folder}/vendor": vendor, f"{folder}/device": "0x1", f"{folder}/class": code})
        (root / folder.lstrip("/") / "config").write_bytes(config)
        (bus / address).symlink_to(root / folder.lstrip("/"))
    return root


def test_the_port_between_a_gpu_and_its_neighbour_is_read_and_no_other(tmp_path: Path) -> None:
    assert read_ports(node(machine(tmp_path))) == [AcsPort("0000:16:00.0", "0000:17:00.0", ON)]


@pytest.mark.parametrize("cpuinfo", [VIRTUAL, ARM, ""])
def test_ports_are_judged_on_bare_metal_only(tmp_path: Path, cpuinfo: str) -> None:
    assert read_ports(node(machine(tmp_path, cpuinfo))) == []


def test_a_gpu_alone_has_nobody_to_talk_to(tmp_path: Path) -> None:
    assert read_ports(node(machine(tmp_path, without=["0000:61:00.0"]))) == []


def test_a_switch_without_neighbours_is_no_hindrance(tmp_path: Path) -> None:
    assert read_ports(node(machine(tmp_path, without=["0000:18:00.0"]))) == []


@pytest.mark.parametrize("config", [b"", WITH_ACS[:64], WITH_ACS[:256]])
def test_without_the_right_to_read_it_nothing_is_said(tmp_path: Path, config: bytes) -> None:
    assert read_ports(node(machine(tmp_path, config=config))) == []


def test_a_configuration_space_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    machine(tmp_path)
    config = tmp_path / "sys/bus/pci/devices/0000:16:00.0/config"
    config.unlink()
    assert read_ports(node(tmp_path)) == []
    config.mkdir()
    assert read_ports(node(tmp_path)) == []


async def test_the_check_warns_of_a_port_beside_its_gpus(tmp_path: Path) -> None:
    view = node(machine(tmp_path), {CHILD: answer(of(healthy()))})
    view.history.note("gpuconfig", {})  # not its first run: nothing is read twice
    result = await run_probe(GPUCONFIG, view, GpuconfigParameters())
    assert (result.verdict, result.reason) == (Verdict.WARN, "AcsRedirects")
    assert [finding.component for finding in result.findings] == ["pci/0000:16:00.0", "gpu/0000:18:00.0"]
