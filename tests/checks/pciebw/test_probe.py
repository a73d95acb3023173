"""The check ``pciebw`` as it is run: real children on a CUDA driver made for tests, recorded tools in their place."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.checks.bad_input import TEXTS
from tests.checks.cuda.fake_driver import Commands, address, gpu_node
from tests.checks.graphcore.sample import sample as ipu_sample
from tests.wording.facts import missing_facts

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.pciebw import PCIEBW, PciebwParameters
from muster_checks.registry import load_registry
from muster_checks.testing.recorded import Answer, failed, hung, node

SAMPLES = Path(__file__).parent / "samples"
NVML = f"{sys.executable} -X utf8 -P -m muster_checks.nvidia.nvml_child"
DISCOVERY = b"""+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H800                                                    |
|        | PCI Bus ID: 00000000:18:00.0                                         |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA H800                                                    |
|        | PCI Bus ID: 00000000:28:00.0                                         |
+--------+----------------------------------------------------------------------+
"""


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


async def run(view: NodeView, **parameters: object) -> Result:
    return await run_probe(PCIEBW, view, PciebwParameters.model_validate(parameters))


def verdicts(result: Result) -> dict[str, str]:
    return {finding.component: finding.verdict.value for finding in result.findings}


def by_address(result: Result) -> list[str]:
    """Verdicts of the GPUs in the order of their addresses."""
    return [verdict for _, verdict in sorted(verdicts(result).items())]


def without_driver(view: NodeView, monkeypatch: pytest.MonkeyPatch) -> NodeView:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(view.root))
    return view


def addressed(addresses: Mapping[int, str]) -> bytes:
    """The JSON sample with the addresses of a node here."""
    text = sample("nvbandwidth-8.json")
    for old, new in zip(("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"), addresses.values(), strict=True):
        text = text.replace(f"(00000000:{old}:00)".encode(), f"({new[:-2]})".encode())
    return text


async def test_the_one_slow_gpu_of_eight_fails(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 8, slow=5))
    assert by_address(result) == ["PASS"] * 5 + ["FAIL"] + ["PASS"] * 2
    assert result.findings[0].component == f"gpu/{address(5)}"
    assert result.findings[0].measurements[0].value == pytest.approx(2.5, abs=0.01)


async def test_every_figure_is_a_measurement(library: Path, tmp_path: Path) -> None:
    (finding,) = (await run(gpu_node(tmp_path))).findings
    assert [(m.name, m.value, m.unit, m.threshold) for m in finding.measurements] == [
        ("to_device", 25.0, "GB/s", 7.88),  # a quarter of 16 lanes at 16 GT/s
        ("from_device", 25.0, "GB/s", 7.88),
    ]


async def test_what_a_model_should_do_is_known(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 1, name="NVIDIA H100 80GB HBM3")
    for end in view.root.glob("sys/devices/**/max_link_speed"):
        end.write_text("32.0 GT/s PCIe\n")
    (finding,) = (await run(view)).findings
    assert finding.verdict is Verdict.WARN
    assert "below 48.0" in finding.message
    assert "NVIDIA H100 80GB HBM3" in finding.message


async def test_a_slot_that_is_slower_than_the_model_is_judged_by_the_slot(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 1, name="NVIDIA H100 80GB HBM3"))
    assert result.verdict is Verdict.PASS


async def test_an_operators_own_expectations_count(library: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("- {model: '*A100*', h2d_gb_per_s: 30}\n")
    result = await run(gpu_node(tmp_path / "root"), expected=own)
    assert result.verdict is Verdict.WARN


async def test_expectations_that_cannot_be_read_are_unknown(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path / "root"), expected=tmp_path / "none.yaml")
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "BadExpectations")


@pytest.mark.parametrize("settings", [{"error": "5:cuDevicePrimaryCtxRetain:46"}, {"crash": 5}])
async def test_a_gpu_that_cannot_be_had_is_unknown_and_the_others_are_judged(
    library: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    result = await run(gpu_node(tmp_path, 8, slow=1, **settings))
    assert by_address(result) == ["PASS", "FAIL", "PASS", "PASS", "PASS", "UNKNOWN", "PASS", "PASS"]


async def test_a_gpu_that_the_driver_does_not_offer_is_unknown(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 2)
    assert isinstance(view.commands, Commands)
    view.commands.settings["FAKE_COUNT"] = "1"
    result = await run(view)
    assert by_address(result) == ["PASS", "UNKNOWN"]
    assert "driver" in result.message


async def test_a_gpu_that_was_handed_to_a_virtual_machine_is_left_out(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 2)
    assert isinstance(view.commands, Commands)
    view.commands.settings["FAKE_COUNT"] = "1"
    (tmp_path / "vfio-pci").mkdir()
    (tmp_path / "sys/bus/pci/devices" / address(1) / "driver").symlink_to(tmp_path / "vfio-pci")
    assert verdicts(await run(view)) == {f"gpu/{address(0)}": "PASS"}


async def test_a_slow_gpu_that_somebody_uses_is_unknown(library: Path, tmp_path: Path) -> None:
    reading = GpuReading(source="nvml", gpus=(Gpu(index=0, address=address(0), memory_used_mib=9000.0),))
    result = await run(gpu_node(tmp_path, 1, {NVML: msgspec.json.encode({"reading": reading})}, slow=0))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "InUse")


async def test_a_slow_slice_of_a_gpu_is_unknown(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 1, slow=0, name="NVIDIA A100-SXM4-80GB MIG 1g.10gb"))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "InUse")


async def test_nvbandwidth_is_asked_first_and_alone_where_it_measures_all(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 8, {"nvbandwidth": addressed({i: address(i) for i in range(8)})})
    assert by_address(await run(view)) == ["PASS"] * 5 + ["FAIL"] + ["PASS"] * 2
    assert isinstance(view.commands, Commands)
    assert not any("muster_checks.cuda.copies" in line for line, _ in view.commands.calls)


async def test_figures_without_addresses_go_by_their_order(tmp_path: Path) -> None:
    text = sample("nvbandwidth-0.10.txt").replace(b"55.25     55.25", b"55.25      3.25")
    result = await run(gpu_node(tmp_path, 8, {"nvbandwidth": text}))
    assert by_address(result) == ["PASS"] * 5 + ["FAIL"] + ["PASS"] * 2


async def test_figures_of_fewer_gpus_than_there_are_go_to_none(library: Path, tmp_path: Path) -> None:
    result = await run(gpu_node(tmp_path, 2, {"nvbandwidth": sample("nvbandwidth-0.10.txt")}))
    assert [finding.measurements[0].value for finding in result.findings] == [25.0, 25.0]  # our own copies


async def test_what_nvbandwidth_measured_is_not_measured_again(library: Path, tmp_path: Path) -> None:
    text = addressed({i: address(i) for i in range(8)}).replace(b'"13.8066"', b'"N/A"')
    result = await run(gpu_node(tmp_path, 8, {"nvbandwidth": text}), min_share_of_others=0.0)
    measured = {finding.component: finding.measurements[0].value for finding in result.findings}
    assert measured[f"gpu/{address(4)}"] == 55.36
    assert measured[f"gpu/{address(5)}"] == 25.0


async def test_figures_that_belong_to_no_gpu_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = gpu_node(tmp_path, 2, {"nvbandwidth": sample("nvbandwidth-0.10.txt")})
    assert (await run(without_driver(view, monkeypatch))).findings == ()


async def test_dcgm_is_left_alone_where_the_driver_refuses_a_gpu(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 2, {"dcgmi": sample("dcgm4-pcie.json")}, error="1:cuDevicePrimaryCtxRetain:46")
    assert by_address(await run(view)) == ["PASS", "UNKNOWN"]
    assert isinstance(view.commands, Commands)
    assert not any(line[0] == "dcgmi" for line, _ in view.commands.calls)


async def test_an_nvbandwidth_without_json_is_asked_for_text(tmp_path: Path) -> None:
    def answer(argv: tuple[str, ...]) -> Answer:
        text = sample("nvbandwidth-0.10.txt")
        return failed("nvbandwidth", 1, stdout=b"ERROR: Invalid Arguments") if "-j" in argv else text

    assert (await run(gpu_node(tmp_path, 8, {"nvbandwidth": answer}))).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "answer",
    [
        failed("nvbandwidth", 1, b"[CUDA_ERROR_DEVICE_UNAVAILABLE] in expression cuCtxCreate"),
        failed("nvbandwidth", 127, b"libboost_program_options.so: cannot open shared object file"),
        failed("nvbandwidth", -11),
        hung("nvbandwidth", 240.0),
        b'{"nvbandwidth": {"error": "[CUDA_ERROR_DEVICE_UNAVAILABLE]"}}',
    ],
)
async def test_where_nvbandwidth_fails_our_own_copies_take_its_place(
    library: Path, tmp_path: Path, answer: Answer
) -> None:
    result = await run(gpu_node(tmp_path, 2, {"nvbandwidth": answer}, error="1:cuDevicePrimaryCtxRetain:46"))
    assert by_address(result) == ["PASS", "UNKNOWN"]


async def test_without_a_driver_library_dcgm_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Answer] = {"dcgmi diag": sample("dcgm4-pcie.json"), "dcgmi discovery": DISCOVERY}
    result = await run(without_driver(gpu_node(tmp_path, 3, answers), monkeypatch))
    assert by_address(result) == ["PASS", "FAIL", "UNKNOWN"]


async def test_without_any_tool_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await run(without_driver(gpu_node(tmp_path, 1), monkeypatch))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert "libcuda1" in result.message


async def test_where_every_source_fails_each_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Answer] = {
        "nvbandwidth": failed("nvbandwidth", 1, b"NVML_ERROR"),
        "dcgmi": failed("dcgmi", 1, stdout=b"Error: unable to establish a connection to the specified host: localhost"),
    }
    result = await run(without_driver(gpu_node(tmp_path, 1, answers), monkeypatch))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NotMeasured")
    facts = ("nvbandwidth", "NVML_ERROR", "libcuda.so.1", "unable to establish a connection")
    assert missing_facts(result.message, *facts) == []


async def test_a_driver_that_offers_no_gpu_is_unknown(library: Path, tmp_path: Path) -> None:
    view = gpu_node(tmp_path, 1)
    assert isinstance(view.commands, Commands)
    view.commands.settings["FAKE_COUNT"] = "0"
    result = await run(view)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NoCudaDevice")


async def test_a_node_without_accelerators_is_left_out(tmp_path: Path) -> None:
    assert (await run(node(tmp_path))).verdict is Verdict.SKIP


async def test_ipus_are_measured_by_their_own_tool(tmp_path: Path) -> None:
    listed = b"Partition: p1 [active]\n-+- Id: [0], target: [Fabric], IPU-M host: [10.1.5.17], IPU#: [3]\n"
    answers = {"gc-info": listed, "gc-hosttraffictest": ipu_sample("gc_hosttraffictest.json")}
    result = await run(node(tmp_path, answers))
    (finding,) = result.findings
    assert (finding.component, finding.verdict) == ("ipu/10.1.5.17/3", Verdict.PASS)
    assert [m.unit for m in finding.measurements] == ["GB/s", "GB/s"]


def recorded(text: bytes) -> Result | None:
    return run_recorded(PCIEBW, text, PciebwParameters())


def test_recorded_json_of_eight_gpus_fails_the_slow_one() -> None:
    result = recorded(sample("nvbandwidth-8.json"))
    assert result is not None
    assert verdicts(result)["gpu/0000:ab:00.0"] == "FAIL"
    assert [finding.verdict for finding in result.findings].count(Verdict.PASS) == 7


def test_recorded_text_without_addresses_names_gpus_by_number() -> None:
    result = recorded(sample("nvbandwidth-0.10.txt"))
    assert result is not None
    assert verdicts(result) == {f"gpu/{number}": "PASS" for number in range(8)}


@pytest.mark.parametrize(("name", "verdict"), [("dcgm4-pcie.json", "FAIL"), ("nvvs-pcie.json", "PASS")])
def test_recorded_output_of_dcgm_is_judged(name: str, verdict: str) -> None:
    result = recorded(sample(name))
    assert result is not None
    assert verdicts(result)["gpu/1"] == verdict


def test_a_recorded_diagnosis_without_bandwidths_is_not_ours() -> None:
    assert recorded(b'{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "software"}]}]}}') is not None
    text = b'{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "s", "results": [{"status": "Pass"}]}]}]}}'
    assert recorded(text) is None


def test_a_recorded_child_is_judged() -> None:
    text = (
        b'{"type":"begun","index":0,"count":2,"address":"0000:3b:00.0","name":"NVIDIA T4"}\n'
        b'{"type":"copied","index":0,"to_device_gb_per_s":3.0,"from_device_gb_per_s":12.0}\n'
        b'{"type":"failed","index":1,"call":"cuDeviceGet","error":"CUDA_ERROR_INVALID_DEVICE"}\n'
    )
    result = recorded(text)
    assert result is not None
    assert verdicts(result) == {"gpu/0000:3b:00.0": "FAIL", "gpu/1": "UNKNOWN"}


def test_recorded_traffic_of_an_ipu_is_judged() -> None:
    result = recorded(ipu_sample("gc_hosttraffictest.json"))
    assert result is not None
    assert result.findings[0].component.startswith("ipu/")
    assert result.verdict is Verdict.PASS, "Graphcore's example of a healthy machine: 2.9 GB/s from the IPU"


@pytest.mark.parametrize("board", ["c2", "c600"])
def test_the_attributes_of_an_ipu_are_no_traffic(board: str) -> None:
    assert recorded(ipu_sample(f"gc_info_device_{board}.txt")) is None


def test_a_recorded_error_is_unknown() -> None:
    result = recorded(b'{"nvbandwidth": {"error": "[CUDA_ERROR_NO_DEVICE]"}}')
    assert result is not None
    assert (result.verdict, result.message) == (Verdict.UNKNOWN, "nvbandwidth: [CUDA_ERROR_NO_DEVICE]")


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_is_not_ours(text: bytes) -> None:
    assert recorded(text) is None


def test_the_check_is_shipped() -> None:
    assert load_registry(())["pciebw"] is PCIEBW
