"""The check ``memory``: EDAC counters, and what the kernel says of its memory as a whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import NO_VALUES, TEXTS, UNMEASURED, mangled, verdicts_of

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Finding, Result, Verdict
from muster_checks.memory import MEMORY, MemoryParameters
from muster_checks.memory.edac import read_dimms
from muster_checks.memory.judge import judge_host_memory
from muster_checks.memory.meminfo import HostMemory, NumaMemory, parse_host_memory, parse_pressure, read_host_memory
from muster_checks.testing.recorded import lay_out, node

SAMPLES = Path(__file__).parent / "samples"
MEMINFO = (SAMPLES / "meminfo.txt").read_text()
MC = "/sys/devices/system/edac/mc/mc0"
DAY_S = 86_400.0
GIB = 1 << 20


class Clock:
    """A steady clock of the tests' own."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def edac(**counts: str | int) -> dict[str, str | int]:
    """A controller with two DIMMs, ten days old; ``dimm0_ce=5`` and the like change a count."""
    files: dict[str, str | int] = {
        f"{MC}/seconds_since_reset": counts.get("age_s", 864_000),
        f"{MC}/ce_noinfo_count": counts.get("lost_ce", 0),
        f"{MC}/ue_noinfo_count": counts.get("lost_ue", 0),
        f"{MC}/mc_name": "Intel_10nm_edac",
    }
    for name in ("dimm0", "dimm8"):
        files |= {
            f"{MC}/{name}/dimm_label": f"CPU_SrcID#0_MC#0_Chan#{name[4:]}_DIMM#0",
            f"{MC}/{name}/dimm_ce_count": counts.get(f"{name}_ce", 0),
            f"{MC}/{name}/dimm_ue_count": counts.get(f"{name}_ue", 0),
        }
    return files


def sound(**counts: str | int) -> dict[str, str | int]:
    return {
        "/proc/meminfo": MEMINFO,
        "/proc/vmstat": (SAMPLES / "vmstat.txt").read_text(),
        "/proc/pressure/memory": (SAMPLES / "pressure.txt").read_text(),
        **edac(**counts),
    }


async def run(view: NodeView, **parameters: Any) -> Result:
    return await run_probe(MEMORY, view, MemoryParameters(first_interval_s=0, **parameters))


def of(result: Result, component: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.component == component]


def reasons(result: Result) -> dict[str, Verdict]:
    return {finding.reason: finding.verdict for finding in result.findings if finding.verdict is not Verdict.PASS}


def measured(finding: Finding) -> Mapping[str, float]:
    return {measurement.name: measurement.value for measurement in finding.measurements}


DIMM0 = "dimm/CPU_SrcID#0_MC#0_Chan#0_DIMM#0"


async def test_a_sound_node_passes_with_each_dimm_and_its_memory_measured(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, sound(dimm0_ce=2_932_108))))
    assert result.verdict is Verdict.PASS
    assert [finding.component for finding in result.findings] == [
        DIMM0,
        "dimm/CPU_SrcID#0_MC#0_Chan#8_DIMM#0",
        "host",
    ]
    assert measured(of(result, DIMM0)[0]) == {"uncorrected": 0, "corrected_per_day": 0, "corrected": 2_932_108}
    host = measured(of(result, "host")[0])
    assert host["total"] == pytest.approx(23.54, abs=0.01)
    assert host["oom_kills"] == 0


async def test_an_uncorrected_error_fails_its_dimm_and_asks_for_a_new_one(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, sound(dimm0_ue=1))))
    assert result.verdict is Verdict.FAIL
    [finding] = of(result, DIMM0)
    assert (finding.reason, finding.fault_class) == ("UncorrectedErrors", FaultClass.REPLACE)
    assert [found.verdict for found in of(result, "host")] == [Verdict.PASS]


async def test_corrected_errors_are_judged_by_their_rise_within_a_day(tmp_path: Path) -> None:
    clock = Clock()
    view = node(lay_out(tmp_path, sound(dimm0_ce=5000)), clock=clock)
    assert (await run(view)).verdict is Verdict.PASS
    clock.now += 3600
    lay_out(tmp_path, edac(dimm0_ce=5010))
    assert (await run(view)).verdict is Verdict.PASS
    clock.now += 3600
    lay_out(tmp_path, edac(dimm0_ce=5011))
    result = await run(view)
    assert reasons(result) == {"CorrectedErrors": Verdict.WARN}
    assert measured(of(result, DIMM0)[0])["corrected_per_day"] == 11
    clock.now += 2 * DAY_S
    assert (await run(view)).verdict is Verdict.PASS


async def test_a_counter_younger_than_a_day_counts_what_came_before_muster(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, sound(dimm8_ce=11, age_s=7200))))
    assert reasons(result) == {"CorrectedErrors": Verdict.WARN}


async def test_errors_of_unknown_place_name_their_controller(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, sound(lost_ue=2))))
    assert [(f.reason, f.fault_class) for f in of(result, "dimm/mc0")] == [("UncorrectedErrors", FaultClass.CONTACT)]


async def test_a_kernel_without_counters_of_dimms_is_judged_by_its_controllers(tmp_path: Path) -> None:
    files: dict[str, str | int] = {f"{MC}/ce_count": 0, f"{MC}/ue_count": 1, f"{MC}/dimm0/dimm_label": "A1"}
    result = await run(node(lay_out(tmp_path, {"/proc/meminfo": MEMINFO, **files})))
    assert [finding.verdict for finding in of(result, "dimm/mc0")] == [Verdict.FAIL]


async def test_a_counter_that_cannot_be_read_leaves_the_other_dimms_judged(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, sound(dimm0_ce="N/A", dimm8_ue=1))))
    assert reasons(result) == {"NotReadable": Verdict.UNKNOWN, "UncorrectedErrors": Verdict.FAIL}


def test_dimms_with_the_same_label_or_none_go_by_their_place(tmp_path: Path) -> None:
    files = edac() | {f"{MC}/dimm0/dimm_label": "DIMM", f"{MC}/dimm8/dimm_label": "DIMM"}
    assert [dimm.label for dimm in read_dimms(node(lay_out(tmp_path, files)))] == ["mc0/dimm0", "mc0/dimm8", "mc0"]
    files = edac() | {f"{MC}/dimm0/dimm_label": ""}
    assert read_dimms(node(lay_out(tmp_path, files)))[0].label == "mc0/dimm0"


async def test_too_few_dimms_fail(tmp_path: Path) -> None:
    view = node(lay_out(tmp_path, sound()))
    assert reasons(await run(view, min_dimms=3)) == {"DimmMissing": Verdict.FAIL}
    assert (await run(view, min_dimms=2)).verdict is Verdict.PASS


async def test_dimms_cannot_be_counted_without_edac(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, {"/proc/meminfo": MEMINFO})), min_dimms=2)
    assert reasons(result) == {"NoEdac": Verdict.UNKNOWN}


async def test_less_memory_than_expected_fails(tmp_path: Path) -> None:
    view = node(lay_out(tmp_path, sound()))
    result = await run(view, min_total_gib=24)
    assert reasons(result) == {"MemoryMissing": Verdict.FAIL}
    assert (await run(view, min_total_gib=23.5)).verdict is Verdict.PASS


async def test_an_unreadable_meminfo_is_unknown_and_the_dimms_are_judged(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, edac(dimm0_ue=1))))
    assert reasons(result) == {"NotReadable": Verdict.UNKNOWN, "UncorrectedErrors": Verdict.FAIL}


async def test_no_file_at_all_is_unknown(tmp_path: Path) -> None:
    assert (await run(node(tmp_path))).verdict is Verdict.UNKNOWN


def judged(vitals: HostMemory, **parameters: Any) -> dict[str, Verdict]:
    return {finding.reason: finding.verdict for finding in judge_host_memory(vitals, MemoryParameters(**parameters))}


@pytest.mark.parametrize(
    ("vitals", "parameters", "expected"),
    [
        (HostMemory(total=GIB), {}, {"Ok": Verdict.PASS}),
        (HostMemory(total=GIB, available=100 << 10), {}, {"Ok": Verdict.PASS}),
        (HostMemory(total=GIB, available=99 << 10), {}, {"MemoryLow": Verdict.WARN}),
        (HostMemory(total=GIB, pressure_percent=60), {}, {"Ok": Verdict.PASS}),
        (HostMemory(total=GIB, pressure_percent=61), {}, {"MemoryPressure": Verdict.WARN}),
        (HostMemory(total=GIB, corrupted=4), {}, {"MemoryPoisoned": Verdict.WARN}),
        (HostMemory(total=GIB, swap_total=GIB, swap_free=0), {}, {"Ok": Verdict.PASS}),
        (HostMemory(total=GIB, swap_total=GIB), {"allow_swap": False}, {"SwapOn": Verdict.WARN}),
        (HostMemory(total=GIB, swap_total=0), {"allow_swap": False}, {"Ok": Verdict.PASS}),
        (HostMemory(total=GIB, huge=1 << 10), {"min_hugepages_mib": 2}, {"HugePagesMissing": Verdict.WARN}),
        (HostMemory(total=GIB, huge=2 << 10), {"min_hugepages_mib": 2}, {"Ok": Verdict.PASS}),
        (HostMemory(total=GIB), {"min_hugepages_mib": 2}, {"NotReadable": Verdict.UNKNOWN}),
        (
            HostMemory(total=GIB, available=0, corrupted=8, pressure_percent=99),
            {"min_total_gib": 2},
            {
                "MemoryMissing": Verdict.FAIL,
                "MemoryLow": Verdict.WARN,
                "MemoryPoisoned": Verdict.WARN,
                "MemoryPressure": Verdict.WARN,
            },
        ),
    ],
)
def test_limits(vitals: HostMemory, parameters: dict[str, Any], expected: dict[str, Verdict]) -> None:
    assert judged(vitals, **parameters) == expected


def numa(*sizes_gib: int | None, cpus: bool = True) -> tuple[NumaMemory, ...]:
    return tuple(NumaMemory(n, None if gib is None else gib * GIB, cpus) for n, gib in enumerate(sizes_gib))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (numa(512, 512), {"Ok": Verdict.PASS}),
        (numa(512, 505), {"Ok": Verdict.PASS}),
        (numa(512, 480), {"NumaNodeSmall": Verdict.WARN}),
        (numa(32, 28), {"Ok": Verdict.PASS}),
        (numa(512, 0), {"NumaNodeEmpty": Verdict.WARN}),
        (numa(512, None), {"Ok": Verdict.PASS}),
        (numa(0), {"Ok": Verdict.PASS}),
        ((*numa(480), NumaMemory(1, 96 * GIB, has_cpus=False), NumaMemory(2, 0, has_cpus=False)), {"Ok": Verdict.PASS}),
        ((NumaMemory(0, GIB, True, poisoned=3, in_use=1),), {"PoisonInUse": Verdict.WARN}),
        ((NumaMemory(0, GIB, True, poisoned=3, in_use=0),), {"Ok": Verdict.PASS}),
    ],
)
def test_numa_nodes(nodes: tuple[NumaMemory, ...], expected: dict[str, Verdict]) -> None:
    total = sum(numa.memory_kib or 0 for numa in nodes) or GIB
    assert judged(HostMemory(total=total, nodes=nodes)) == expected


def test_numa_nodes_that_do_not_add_up_are_not_compared() -> None:
    assert judged(HostMemory(total=900 * GIB, nodes=numa(400, 200))) == {"Ok": Verdict.PASS}


def test_what_the_kernel_says_is_read(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "/proc/meminfo": "MemTotal: 2097152 kB\nHardwareCorrupted:     8 kB\nHugePages_Total:       3",
        "/proc/pressure/memory": "some avg10=1.00 avg60=2.00 avg300=3.00 total=1\nfull avg10=0.10 avg60=12.5 total=1",
        "/proc/vmstat": "nr_free_pages 1\noom_kill 7\noom_kill_x 9",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": 3,
        "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": 1,
        "/sys/kernel/mm/hugepages/hugepages-xkB/nr_hugepages": 1,
        "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1048576 kB",
        "/sys/devices/system/node/node0/cpulist": "0-3",
        "/sys/devices/system/node/node0/memory_failure/total": 2,
        "/sys/devices/system/node/node0/memory_failure/failed": 1,
        "/sys/devices/system/node/node1/cpulist": "",
        "/sys/devices/system/node/possible": "0-1",
    }
    assert read_host_memory(node(lay_out(tmp_path, files))) == HostMemory(
        total=2 * GIB,
        corrupted=8,
        huge=3 * 2048 + GIB,
        pressure_percent=12.5,
        oom_kills=7,
        nodes=(NumaMemory(0, GIB, True, 2, 1), NumaMemory(1, None, False)),
    )


def test_recorded_meminfo_is_judged() -> None:
    result = run_recorded(MEMORY, MEMINFO.encode(), MemoryParameters(min_total_gib=64))
    assert result is not None
    assert result.reason == "MemoryMissing"


def test_text_of_another_kind_is_left_to_others() -> None:
    assert run_recorded(MEMORY, b"MemFree: 1 kB\n", MemoryParameters()) is None


@pytest.mark.parametrize("text", [*TEXTS, *mangled(MEMINFO.encode())])
def test_no_meminfo_is_a_failure(text: bytes) -> None:
    result = run_recorded(MEMORY, text, MemoryParameters())
    assert result is None or result.verdict is not Verdict.FAIL


@pytest.mark.parametrize("value", [*NO_VALUES, -1, 10**30])
async def test_no_value_of_a_counter_is_a_failure(tmp_path: Path, value: object) -> None:
    files = {name: str(value) for name in sound() if name != "/proc/meminfo"}
    result = await run(node(lay_out(tmp_path, {**files, "/proc/meminfo": MEMINFO})))
    assert result.verdict is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(st.binary() | st.text().map(str.encode))
def test_any_text_gives_a_result_or_nothing(raw: bytes) -> None:
    parse_pressure(raw.decode("utf-8", "replace"))
    try:
        judged_ = judge_host_memory(parse_host_memory(raw.decode("utf-8", "replace")), MemoryParameters())
    except UNMEASURED:
        return
    assert Verdict.FAIL not in verdicts_of(judged_)


def test_a_text_without_memtotal_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="MemTotal"):
        parse_host_memory("MemFree: 1 kB")
