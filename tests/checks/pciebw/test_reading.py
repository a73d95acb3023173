"""What tools print of bandwidths: nvbandwidth as text and JSON, DCGM's pcie test; and sysfs of links."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, any_json, huge, mangled, replaced

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import NodeView
from muster_checks.dcgm.parse import parse as parse_diagnosis
from muster_checks.hardware.pci import nvidia_gpus
from muster_checks.pciebw.dcgm_pcie import read_bandwidths
from muster_checks.pciebw.link import link_gb_per_s
from muster_checks.pciebw.nvbandwidth import NvbandwidthGpu, is_nvbandwidth, parse
from muster_checks.testing.recorded import lay_out

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def test_text_has_a_column_for_each_gpu() -> None:
    report = parse(sample("nvbandwidth-0.10.txt"))
    assert list(report.to_device.values()) == [55.37, 55.36, 55.37, 55.36, 55.36, 55.36, 55.36, 55.33]
    assert report.from_device[7] == 55.20
    assert report.devices == {}


def test_text_of_older_versions_has_the_address_of_each_gpu() -> None:
    report = parse(sample("nvbandwidth-0.8.txt"))
    assert (report.to_device, report.from_device) == ({0: 12.98}, {0: 13.17})
    assert report.devices == {0: NvbandwidthGpu("NVIDIA GeForce RTX 3050 Laptop GPU", "0000:01:00.0")}


def test_tests_of_both_directions_at_once_are_not_taken_for_one() -> None:
    text = sample("nvbandwidth-0.8.txt")
    bidirectional = text[text.index(b"Running host_to_device_bidirectional") :]
    with pytest.raises(Unreadable):
        parse(b"nvbandwidth Version: v0.8\n" + bidirectional)


def test_a_device_without_an_address_has_its_name() -> None:
    assert parse(b"Device 0: NVIDIA A10\n" + sample("nvbandwidth-0.10.txt")).devices == {
        0: NvbandwidthGpu("NVIDIA A10", "")
    }


def test_json_has_figures_and_addresses() -> None:
    report = parse(sample("nvbandwidth-8.json"))
    assert report.to_device[5] == 13.8066
    assert report.from_device[5] == 14.1006
    assert report.devices[5] == NvbandwidthGpu("NVIDIA H100 80GB HBM3", "0000:ab:00.0")


@pytest.mark.parametrize("status", ["Waived", "Error", "Not Found", "Running"])
def test_a_test_that_did_not_pass_has_no_figures(status: str) -> None:
    document = json.loads(sample("nvbandwidth-8.json"))
    document["nvbandwidth"]["testcases"][1]["status"] = status
    report = parse(json.dumps(document).encode())
    assert report.from_device == {}
    assert len(report.to_device) == 8


def test_a_gpu_without_a_figure_is_left_out() -> None:
    text = sample("nvbandwidth-8.json").replace(b'"13.8066"', b'"N/A"')
    assert 5 not in parse(text).to_device


@pytest.mark.parametrize(
    "text",
    [
        b"nvbandwidth Version: v0.8\n[CUDA_ERROR_NO_DEVICE] no CUDA-capable device in expression cuInit(0)\n",
        b'{"nvbandwidth": {"error": "[CUDA_ERROR_NO_DEVICE] no CUDA-capable device"}}',
    ],
)
def test_an_error_is_told_in_the_tools_words(text: bytes) -> None:
    assert "CUDA_ERROR_NO_DEVICE" in parse(text).error


@pytest.mark.parametrize("text", [*TEXTS, b'{"nvbandwidth": 5}', b'{"nvbandwidth": {"testcases": 7}}'])
def test_what_is_no_report_is_unreadable(text: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(text)


@pytest.mark.parametrize("name", ["nvbandwidth-0.8.txt", "nvbandwidth-0.10.txt", "nvbandwidth-8.json"])
def test_a_report_cut_short_is_read_as_far_as_it_goes(name: str) -> None:
    for text in mangled(sample(name)):
        try:
            report = parse(text)
        except Unreadable:
            continue
        assert len(report.to_device) in (0, 1, 8)


def test_other_values_in_a_report_break_nothing() -> None:
    for document in replaced(json.loads(sample("nvbandwidth-8.json"))):
        try:
            report = parse(json.dumps(document).encode())
        except Unreadable:
            continue
        assert all(0 < value < 100 for value in report.to_device.values())


def test_a_report_without_end_is_refused_or_read_in_bounds() -> None:
    text = huge(sample("nvbandwidth-0.10.txt"), b"Device 0: x\n")
    assert len(parse(text[: 32 << 20]).to_device) == 8


@settings(max_examples=100, deadline=None)
@given(any_json().map(lambda value: json.dumps({"nvbandwidth": value}).encode()) | st.binary(max_size=200))
def test_no_text_breaks_the_reader(text: bytes) -> None:
    for whole in (text, b"Running host_to_device_memcpy_ce.\n0 1\n" + text):
        try:
            parse(whole)
        except Unreadable:
            continue


def test_other_text_is_not_taken_for_a_report() -> None:
    assert not is_nvbandwidth(sample("dcgm4-pcie.json"))
    assert is_nvbandwidth(sample("nvbandwidth-8.json"))


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("dcgm4-pcie.json", {0: (27.65, 28.27), 1: (3.05, 3.11)}),
        ("dcgm3-pcie.json", {0: (25.93, 24.02)}),
        ("nvvs-pcie.json", {0: (12.13, 13.08), 1: (12.13, 13.07)}),
    ],
)
def test_dcgm_tells_the_bandwidths_of_its_pcie_test(name: str, figures: dict[int, tuple[float, float]]) -> None:
    found = read_bandwidths(parse_diagnosis(sample(name)))
    assert {gpu: (one.to_device_gb_per_s, one.from_device_gb_per_s) for gpu, one in found.items()} == figures


def test_a_bandwidth_of_no_gpu_is_passed_over() -> None:
    text = sample("nvvs-pcie.json").replace(b"GPU 0 GPU to", b"GPU to").replace(b"12.13", b"1.2.3")
    found = read_bandwidths(parse_diagnosis(text))
    assert found.keys() == {1}
    assert found[1].to_device_gb_per_s is None


def link_of(root: Path, /, **ends: str) -> float | None:
    """Of a GPU at 01:00.0, its links' ends given as ``"16.0 GT/s PCIe x16"`` from the root on."""
    path, files = "/sys/devices/pci0000:00", {}
    for place, (_, text) in enumerate(ends.items()):
        path = f"{path}/0000:0{place}:00.0"
        speed, _, width = text.rpartition(" x")
        files |= {f"{path}/max_link_speed": speed, f"{path}/max_link_width": width}
    files |= {f"{path}/vendor": "0x10de", f"{path}/device": "0x2330", f"{path}/class": "0x030200"}
    lay_out(root, files)
    listed = root / "sys/bus/pci/devices"
    listed.mkdir(parents=True)
    (listed / path.rpartition("/")[2]).symlink_to(root / path.lstrip("/"))
    (gpu,) = nvidia_gpus(NodeView(root))
    return link_gb_per_s(gpu)


@pytest.mark.parametrize(
    ("ends", "gb_per_s"),
    [
        ({"port": "32.0 GT/s PCIe x16", "gpu": "32.0 GT/s PCIe x16"}, 63.008),
        ({"port": "16.0 GT/s PCIe x16", "gpu": "32.0 GT/s PCIe x16"}, 31.504),
        ({"port": "16.0 GT/s PCIe x16", "gpu": "32.0 GT/s PCIe x8"}, 15.752),
        ({"port": "8 GT/s x16", "gpu": "8 GT/s x16"}, 15.76),
        ({"gpu": "64.0 GT/s PCIe x16"}, 121.008),
        ({"gpu": "2.5 GT/s PCIe x1"}, 0.25),
        ({"gpu": "Unknown x0"}, None),
        ({"gpu": "Unknown speed x255"}, None),
        ({"port": "Unknown x0", "gpu": "5.0 GT/s PCIe x4"}, 2.0),
    ],
)
def test_a_link_is_as_fast_as_its_slower_end(tmp_path: Path, ends: dict[str, str], gb_per_s: float | None) -> None:
    assert link_of(tmp_path, **ends) == (None if gb_per_s is None else pytest.approx(gb_per_s))


def test_the_slowest_link_on_the_way_counts(tmp_path: Path) -> None:
    fast, slow = "32.0 GT/s PCIe x16", "16.0 GT/s PCIe x16"
    assert link_of(tmp_path, root=slow, up=fast, down=fast, gpu=fast) == pytest.approx(31.504)


def test_what_lies_within_a_switch_is_no_link(tmp_path: Path) -> None:
    # few fast lanes up, many slow ones down: never few slow ones
    up, down = "32.0 GT/s PCIe x8", "16.0 GT/s PCIe x16"
    assert link_of(tmp_path, root=up, up=up, down=down, gpu=down) == pytest.approx(31.504)
