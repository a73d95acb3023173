"""What a GPU's configuration comes to."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.nvidia.on_bus import Clock, answer, gpu_node
from tests.checks.nvidia.samples_of import H100, changed, healthy, numbered, of, series
from tests.wording.facts import missing_facts

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.execution import NotHere, run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.gpuconfig import GPUCONFIG, GpuconfigParameters
from muster_checks.gpuconfig.judge import HOST_PIDS, counters, judge, sees_all_processes
from muster_checks.nvidia.gpu import ComputeMode, Gpu, GpuConfig

LIMITS = GpuconfigParameters()
PASS = (Verdict.PASS, "Ok", FaultClass.NONE)
LEFT = {"processes": 0, "memory_allocated_mib": 40_000.0}
LEFTOVER = (Verdict.WARN, "LeftoverMemory", FaultClass.RESET)


def findings_of(*gpus: Gpu, limits: GpuconfigParameters = LIMITS) -> list[Finding]:
    return judge(of(*gpus), None, limits)


def judged(*gpus: Gpu, limits: GpuconfigParameters = LIMITS) -> list[tuple[Verdict, str, FaultClass]]:
    return [(finding.verdict, finding.reason, finding.fault_class) for finding in findings_of(*gpus, limits=limits)]


def one_of(many: int, **parts: object) -> list[Gpu]:
    """``many`` equals, of which the first is changed."""
    gpus = numbered(healthy(), *range(many))
    return [changed(gpus[0], **parts), *gpus[1:]]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, PASS),
        ({"inforom_valid": True}, PASS),
        ({"inforom_valid": False}, (Verdict.FAIL, "InforomCorrupt", FaultClass.CONTACT)),
        ({"mig_pending": True}, (Verdict.WARN, "MigModePending", FaultClass.RESET)),
        ({"compute_mode": ComputeMode.PROHIBITED}, (Verdict.WARN, "ComputeProhibited", FaultClass.NONE)),
        ({"compute_mode": ComputeMode.EXCLUSIVE_PROCESS}, PASS),
        (LEFT, LEFTOVER),
        ({"processes": 0, "memory_allocated_mib": 257.0}, LEFTOVER),
        ({"processes": 0, "memory_allocated_mib": 256.0}, PASS),
        (LEFT | {"processes": 1}, PASS),
        (LEFT | {"processes": None}, PASS),
        (LEFT | {"numa_memory": True}, PASS),
        ({"application_graphics_mhz": 1410}, (Verdict.WARN, "LowApplicationClocks", FaultClass.NONE)),
        ({"application_memory_mhz": 1593}, (Verdict.WARN, "LowApplicationClocks", FaultClass.NONE)),
        ({"application_graphics_mhz": 1980 * 0.996}, PASS),
        ({"application_graphics_mhz": None, "default_application_graphics_mhz": None}, PASS),
    ],
)
def test_one_gpu_by_itself(config: dict[str, Any], expected: tuple[Verdict, str, FaultClass]) -> None:
    assert judged(changed(healthy(), config=config)) == [expected]


def test_several_troubles_are_several_findings() -> None:
    gpu = changed(healthy(), config={"inforom_valid": False, "mig_pending": True})
    assert [reason for _, reason, _ in judged(gpu)] == ["InforomCorrupt", "MigModePending"]


def test_a_vbios_that_most_equals_do_not_have_warns_and_names_theirs() -> None:
    findings = findings_of(*one_of(3, vbios="96.00.74.00.1C"))
    assert [finding.reason for finding in findings] == ["VbiosDiffers", "Ok", "Ok"]
    assert missing_facts(findings[0].message, "96.00.74.00.1C", "96.00.74.00.01") == []


def test_two_gpus_that_differ_both_warn() -> None:
    findings = findings_of(*one_of(2, vbios="A"))
    assert [missing_facts(finding.message, "A", "96.00.74.00.01") for finding in findings] == [[], []]


@pytest.mark.parametrize("parts", [{"name": "NVIDIA L4"}, {"lost": "GPU is lost"}])
def test_other_models_and_lost_gpus_are_no_equals(parts: dict[str, object]) -> None:
    gpus = one_of(2, vbios="A", **parts)
    assert judged(*gpus)[1] == PASS


def test_a_gpu_that_does_not_tell_its_vbios_differs_from_nobody() -> None:
    assert judged(*one_of(2, vbios=None)) == [PASS, PASS]


def test_a_compute_mode_unlike_that_of_its_equals_warns() -> None:
    findings = findings_of(*one_of(3, config={"compute_mode": ComputeMode.EXCLUSIVE_PROCESS}))
    assert [finding.reason for finding in findings] == ["ComputeModeDiffers", "Ok", "Ok"]
    assert missing_facts(findings[0].message, "exclusive-process", "default") == []


def test_exclusive_mode_on_all_is_somebodys_choice() -> None:
    gpu = changed(healthy(), config={"compute_mode": ComputeMode.EXCLUSIVE_PROCESS})
    assert judged(*numbered(gpu, 0, 1)) == [PASS, PASS]


def test_application_clocks_below_those_of_the_equals_warn() -> None:
    unknown = {"default_application_graphics_mhz": None}
    gpus = one_of(2, config={"application_graphics_mhz": 1410, **unknown})
    findings = findings_of(gpus[0], changed(gpus[1], config=unknown))
    assert [finding.reason for finding in findings] == ["LowApplicationClocks", "Ok"]
    assert missing_facts(findings[0].message, "graphics 1410 MHz", "71") == []


def test_both_clocks_are_one_finding() -> None:
    (finding,) = findings_of(
        changed(healthy(), config={"application_graphics_mhz": 1155, "application_memory_mhz": 1593})
    )
    assert "graphics 1155 MHz (default 1980), memory 1593 MHz (default 2619)" in finding.message


@pytest.mark.parametrize(("mhz", "reason"), [(1155.0, "Ok"), (1154.0, "LowApplicationClocks")])
def test_a_limit_of_the_fleet_replaces_the_comparison(mhz: float, reason: str) -> None:
    limits = GpuconfigParameters(min_application_graphics_mhz=1155)
    gpu = changed(healthy(), config={"application_graphics_mhz": mhz})
    assert [reason for _, reason, _ in judged(gpu, limits=limits)] == [reason]


def test_mig_slices_have_memory_of_their_own() -> None:
    assert judged(changed(healthy(), mig=True, config=LEFT | {"mig_pending": True})) == [PASS]


def test_processes_are_measured_and_never_judged() -> None:
    (finding,) = findings_of(changed(healthy(), config={"processes": 9}))
    assert finding.verdict is Verdict.PASS
    assert ("processes", 9) in [(measured.name, measured.value) for measured in finding.measurements]


@pytest.mark.parametrize("field", ["config.inforom_valid", "vbios", "mig", "config.processes"])
def test_what_cannot_be_read_is_unknown(field: str) -> None:
    gpu = changed(healthy(), errors={field: "Unknown Error"})
    assert judged(gpu) == [(Verdict.UNKNOWN, "NotReadable", FaultClass.NONE)]


def test_a_gpu_that_tells_nothing_is_skipped() -> None:
    with pytest.raises(NotHere):
        judged(Gpu(index=0))


def seen(*mib: float) -> dict[str, CounterSeries]:
    return series(**{healthy().component: [(60.0 * place, value) for place, value in enumerate(mib)]})


@pytest.mark.parametrize(
    ("readings", "reason"),
    [((), "Ok"), ((40_000.0,), "Ok"), ((0.0, 40_000.0), "Ok"), ((40_000.0, 40_000.0), "LeftoverMemory")],
)
def test_leftover_memory_warns_once_it_was_seen_twice_running(readings: tuple[float, ...], reason: str) -> None:
    reading = of(changed(healthy(), config=LEFT))
    (finding,) = judge(reading, seen(*readings), LIMITS)
    assert finding.reason == reason


def test_leftover_memory_is_not_judged_where_not_all_processes_are_seen() -> None:
    reading = of(changed(healthy(), config=LEFT))
    (finding,) = judge(reading, None, LIMITS, sees_all=False)
    assert finding.verdict is Verdict.PASS
    assert not {"processes", "leftover_memory"} & {measured.name for measured in finding.measurements}
    assert counters(reading, sees_all=False) == {}


def test_leftover_memory_is_counted_while_no_process_is_there() -> None:
    component = healthy().component
    assert counters(of(changed(healthy(), config=LEFT))) == {component: 40_000.0}
    assert counters(of(changed(healthy(), config=LEFT | {"processes": 1}))) == {component: 0.0}
    assert counters(of(changed(healthy(), lost="GPU is lost"), Gpu(index=1))) == {}


def in_namespace(root: Path, link: str) -> None:
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(link)


@pytest.mark.parametrize(("link", "all_of_them"), [(HOST_PIDS, True), ("pid:[4026532201]", False)])
def test_all_processes_are_seen_from_the_first_namespace_only(tmp_path: Path, link: str, all_of_them: bool) -> None:
    view = gpu_node(tmp_path, of(healthy()))
    assert not sees_all_processes(view)
    in_namespace(tmp_path, link)
    assert sees_all_processes(view) is all_of_them


async def test_a_leftover_warns_at_the_second_look_and_passes_when_it_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    said = [changed(healthy(), config=LEFT)] * 2 + [healthy()]
    view = gpu_node(tmp_path, lambda _: answer(of(said.pop(0))), clock=clock)
    in_namespace(tmp_path, HOST_PIDS)
    view.history.note("gpuconfig", {})  # not its first run: nothing is read twice
    verdicts = []
    for _ in range(3):
        verdicts.append((await run_probe(GPUCONFIG, view, LIMITS)).verdict)
        clock.now += 60
    assert verdicts == [Verdict.PASS, Verdict.WARN, Verdict.PASS]


def test_a_corrupt_inforom_is_found_in_recorded_output() -> None:
    warning = b"WARNING: infoROM is corrupted at gpu 0000:2a:00.0\n"
    result = run_recorded(GPUCONFIG, H100 + warning, LIMITS)
    assert result is not None
    assert (result.verdict, result.reason, result.findings[0].component) == (
        Verdict.FAIL,
        "InforomCorrupt",
        "gpu/0000:2a:00.0",
    )


NUMBERS = st.none() | st.floats(0, 1e9)
CONFIGS = st.builds(
    GpuConfig,
    mig_pending=st.none() | st.booleans(),
    compute_mode=st.none() | st.sampled_from(ComputeMode),
    processes=st.none() | st.integers(0, 9),
    memory_allocated_mib=NUMBERS,
    application_graphics_mhz=NUMBERS,
    application_memory_mhz=NUMBERS,
    default_application_graphics_mhz=NUMBERS,
)


@given(st.lists(CONFIGS, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_nothing_but_a_corrupt_inforom_fails(configs: list[GpuConfig]) -> None:
    gpus = [changed(gpu, config=config) for gpu, config in zip(numbered(healthy(), *range(4)), configs, strict=False)]
    findings = findings_of(*gpus)
    assert Verdict.FAIL not in {finding.verdict for finding in findings}
    assert len({finding.key for finding in findings}) == len(findings)
    assert all(len(finding.message.encode()) <= 256 for finding in findings)
