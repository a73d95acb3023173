"""The check ``cpu``: which CPUs run and how, what they report, and who is stuck."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import NO_VALUES, TEXTS

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import FaultClass, Result, Verdict
from muster_checks.cpu import CPU, CpuParameters
from muster_checks.cpu.counters import Throttling, parse_interrupts, read_interrupts, read_throttling
from muster_checks.cpu.process_states import read_processes
from muster_checks.cpu.topology import CpufreqPolicy, parse_clocks, parse_list, read_topology
from muster_checks.testing.recorded import lay_out, node

SAMPLES = Path(__file__).parent / "samples"
CPUS = "/sys/devices/system/cpu"
Files = dict[str, str | int]


def test_files_that_are_fifos_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    os.mkfifo(tmp_path / "proc/7/stat")
    os.mkfifo(tmp_path / "proc/interrupts")
    assert read_processes(node(tmp_path)).total == 0
    assert read_interrupts(node(tmp_path)) is None


class Clock:
    """A steady clock of the tests' own, long after boot."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def throttled(cpu: int, *, events: int = 0, ms: int | None = 0, socket: int = 0, level: str = "package") -> Files:
    other = "core" if level == "package" else "package"
    files: Files = {
        f"{CPUS}/cpu{cpu}/topology/physical_package_id": socket,
        f"{CPUS}/cpu{cpu}/thermal_throttle/{level}_throttle_count": events,
        f"{CPUS}/cpu{cpu}/thermal_throttle/{other}_throttle_count": 0,
    }
    if ms is not None:
        files[f"{CPUS}/cpu{cpu}/thermal_throttle/{level}_throttle_total_time_ms"] = ms
        files[f"{CPUS}/cpu{cpu}/thermal_throttle/{other}_throttle_total_time_ms"] = 0
    return files


def clocks(*mhz: float) -> str:
    return "".join(f"processor\t: {n}\ncpu MHz\t\t: {value:.3f}\n\n" for n, value in enumerate(mhz))


def policy(governor: str = "performance", driver: str = "acpi-cpufreq", highest_khz: int = 3_400_000) -> Files:
    place = f"{CPUS}/cpufreq/policy0"
    return {
        f"{place}/scaling_governor": governor,
        f"{place}/scaling_driver": driver,
        f"{place}/cpuinfo_max_freq": highest_khz,
    }


def process(number: int, state: str, name: str = "python3") -> Files:
    return {f"/proc/{number}/stat": f"{number} ({name}) {state} 1 {number} {number} 0 -1 4194560"}


def interrupts(**counts: int) -> Files:
    return {"/proc/interrupts": "\n".join(f" {name}: {count} 0   words" for name, count in counts.items())}


def sound() -> Files:
    return {
        f"{CPUS}/present": "0-3",
        f"{CPUS}/online": "0-3",
        f"{CPUS}/smt/control": "on",
        "/sys/devices/system/node/node0/cpulist": "0-3",
        "/proc/loadavg": "3.50 1.00 0.50 4/900 12345",
        "/proc/cpuinfo": clocks(3400, 800, 800, 800),
        "/proc/pressure/cpu": "some avg10=1.00 avg60=2.50 avg300=3.00 total=1",
        **interrupts(MCE=0, THR=0, DFR=0, MCP=900),
        **policy(),
        **throttled(0),
        **process(1, "S"),
    }


async def run(view: NodeView, **parameters: Any) -> Result:
    return await run_probe(CPU, view, CpuParameters(first_interval_s=0, **parameters))


async def one_run(tmp_path: Path, files: Files, **parameters: Any) -> dict[str, Verdict]:
    return reasons(await run(node(lay_out(tmp_path, sound() | files), clock=Clock()), **parameters))


async def two_runs(tmp_path: Path, first: Files, then: Files, after_s: float = 300, **parameters: Any) -> Result:
    clock = Clock()
    view = node(lay_out(tmp_path, sound() | first), clock=clock)
    await run(view, **parameters)
    clock.now += after_s
    lay_out(tmp_path, then)
    return await run(view, **parameters)


def reasons(result: Result) -> dict[str, Verdict]:
    return {finding.reason: finding.verdict for finding in result.findings}


async def test_a_sound_node_passes_with_its_measurements(tmp_path: Path) -> None:
    result = await run(node(lay_out(tmp_path, sound()), clock=Clock()))
    assert result.verdict is Verdict.PASS
    values = {measurement.name: measurement.value for measurement in result.findings[0].measurements}
    assert values == {
        "online": 4,
        "fastest": 3400,
        "load": 3.5,
        "pressure": 2.5,
        "processes": 1,
        "zombies": 0,
        "blocked": 0,
        "mce": 0,
        "thr": 0,
        "dfr": 0,
    }


async def test_fewer_cpus_than_expected_fail(tmp_path: Path) -> None:
    assert await one_run(tmp_path, {}, min_cpus=8) == {"CpusMissing": Verdict.FAIL}
    assert await one_run(tmp_path, {}, min_cpus=4) == {"Ok": Verdict.PASS}


async def test_a_missing_numa_node_fails(tmp_path: Path) -> None:
    assert await one_run(tmp_path, {}, min_numa_nodes=2) == {"NumaNodesMissing": Verdict.FAIL}
    assert await one_run(tmp_path, {}, min_numa_nodes=1) == {"Ok": Verdict.PASS}


async def test_an_offline_cpu_warns(tmp_path: Path) -> None:
    assert await one_run(tmp_path, {f"{CPUS}/online": "0,2-3"}) == {"CpusOffline": Verdict.WARN}


async def test_second_threads_may_be_offline_where_smt_is_off(tmp_path: Path) -> None:
    off: Files = {f"{CPUS}/smt/control": "off"}
    assert await one_run(tmp_path, off | {f"{CPUS}/online": "0-1"}) == {"Ok": Verdict.PASS}
    assert await one_run(tmp_path, off | {f"{CPUS}/online": "0"}) == {"CpusOffline": Verdict.WARN}


@pytest.mark.parametrize("text", ["", "?", "0-", "3-1", "0-99999999999", "0,-1", "²"])
async def test_cpus_that_cannot_be_listed_are_unknown(tmp_path: Path, text: str) -> None:
    assert await one_run(tmp_path, {f"{CPUS}/online": text}) == {"NotReadable": Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("driver", "governor", "expected", "verdict"),
    [
        ("acpi-cpufreq", "powersave", "", Verdict.WARN),
        ("acpi-cpufreq", "schedutil", "", Verdict.PASS),
        ("intel_pstate", "powersave", "", Verdict.PASS),
        ("amd-pstate-epp", "powersave", "", Verdict.PASS),
        ("intel_cpufreq", "powersave", "", Verdict.WARN),
        ("acpi-cpufreq", "schedutil", "performance", Verdict.WARN),
        ("acpi-cpufreq", "performance", "performance", Verdict.PASS),
        ("", "", "performance", Verdict.WARN),
    ],
)
async def test_governor(tmp_path: Path, driver: str, governor: str, expected: str, verdict: Verdict) -> None:
    result = await one_run(tmp_path, policy(governor, driver), governor=expected)
    assert list(result.values()) == [verdict]


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({"/proc/cpuinfo": clocks(400, 400, 400, 400)}, Verdict.WARN),
        ({"/proc/cpuinfo": clocks(400, 400, 400, 1700)}, Verdict.PASS),
        ({"/proc/cpuinfo": clocks(400, 400), "/proc/loadavg": "0.50 0 0 1/1 1"}, Verdict.PASS),
        ({"/proc/cpuinfo": clocks(400, 400), "/proc/loadavg": ""}, Verdict.PASS),
        ({"/proc/cpuinfo": "no clock on this architecture"}, Verdict.PASS),
        ({"/proc/cpuinfo": clocks(400), f"{CPUS}/cpufreq/policy0/cpuinfo_max_freq": "N/A"}, Verdict.PASS),
    ],
)
async def test_a_clock_that_stays_low_under_load_warns(tmp_path: Path, files: Files, verdict: Verdict) -> None:
    assert list((await one_run(tmp_path, files)).values()) == [verdict]


async def test_tasks_that_wait_for_io_are_no_load(tmp_path: Path) -> None:
    files: Files = {"/proc/cpuinfo": clocks(400, 400, 400, 400), **process(7, "D"), **process(8, "D")}
    assert await one_run(tmp_path, files) == {"Ok": Verdict.PASS}


async def test_an_expected_clock_takes_the_place_of_half_the_highest(tmp_path: Path) -> None:
    files: Files = {"/proc/cpuinfo": clocks(1700)}
    assert await one_run(tmp_path, files, min_frequency_mhz=2000) == {"SlowClock": Verdict.WARN}
    assert await one_run(tmp_path, files, min_frequency_mhz=1600) == {"Ok": Verdict.PASS}


async def test_throttling_is_judged_by_the_share_of_time(tmp_path: Path) -> None:
    result = await two_runs(tmp_path, throttled(0, events=9, ms=90_000), throttled(0, events=20, ms=92_900))
    assert result.verdict is Verdict.PASS
    result = await two_runs(tmp_path, throttled(1, ms=0, socket=1), throttled(1, ms=150_000, socket=1))
    [finding] = result.findings
    assert (finding.reason, finding.verdict) == ("ThermalThrottle", Verdict.WARN)
    assert "socket 1 " in finding.message
    assert finding.measurements[0].value == pytest.approx(50, abs=1)


async def test_throttling_before_muster_or_long_ago_is_over(tmp_path: Path) -> None:
    hot = throttled(0, events=10_000, ms=9_000_000)
    assert await one_run(tmp_path, hot) == {"Ok": Verdict.PASS}
    clock = Clock()
    view = node(lay_out(tmp_path, sound() | throttled(0)), clock=clock)
    await run(view)
    clock.now += 300
    lay_out(tmp_path, hot)
    assert (await run(view)).verdict is Verdict.WARN
    for _ in range(4):
        clock.now += 300
        result = await run(view)
    assert result.verdict is Verdict.PASS


async def test_a_short_look_needs_a_quarter_of_a_second_of_throttling(tmp_path: Path) -> None:
    assert (await two_runs(tmp_path, {}, throttled(0, ms=240), after_s=1)).verdict is Verdict.PASS
    assert (await two_runs(tmp_path, throttled(0, ms=0), throttled(0, ms=260), after_s=1)).verdict is Verdict.WARN


async def test_without_a_count_of_time_the_events_count(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    old = {f"{CPUS}/cpu0/thermal_throttle/package_throttle_count": 5, f"{CPUS}/cpu0/topology/physical_package_id": 0}
    base = {name: text for name, text in sound().items() if "thermal_throttle" not in name}
    for after, verdict in ((8, Verdict.PASS), (9, Verdict.WARN)):
        clock = Clock()
        view = node(lay_out(tmp_path / str(after), base | old), clock=clock)
        await run(view)
        clock.now += 300
        lay_out(view.root, {f"{CPUS}/cpu0/thermal_throttle/package_throttle_count": after})
        assert (await run(view)).verdict is verdict


def test_a_sockets_counters_are_those_of_its_worst_cpu(tmp_path: Path) -> None:
    files = throttled(0, events=3, ms=30) | throttled(1, events=5, ms=10) | throttled(2, events=1, ms=1, socket=1)
    files[f"{CPUS}/cpu1/thermal_throttle/core_throttle_count"] = "N/A"
    files[f"{CPUS}/cpu9/online"] = 0
    assert read_throttling(node(lay_out(tmp_path, files))) == [
        Throttling(0, "core", 0, 0),
        Throttling(0, "package", 5, 30),
        Throttling(1, "core", 0, 0),
        Throttling(1, "package", 1, 1),
    ]


def test_interrupts_are_summed_but_for_what_every_cpu_takes() -> None:
    lines = (SAMPLES / "interrupts.txt").read_bytes().splitlines(keepends=True)
    assert parse_interrupts(lines) == {"MCE": 2, "THR": 7, "DFR": 1}


def test_the_interrupts_of_a_large_node_are_read_to_the_end(tmp_path: Path) -> None:
    filler = "  99: " + "0 " * 60_000 + "x\n"
    view = node(lay_out(tmp_path, {"/proc/interrupts": filler * 20 + " MCE: 1 1 Machine check exceptions"}))
    assert read_interrupts(view) == {"MCE": 1}
    assert read_interrupts(node(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("name", "count", "reason"),
    [
        ("MCE", 1, "MachineCheckException"),
        ("DFR", 1, "DeferredErrors"),
        ("THR", 11, "CorrectedMachineChecks"),
        ("THR", 10, "Ok"),
        ("MCP", 9999, "Ok"),
    ],
)
async def test_errors_that_cpus_report_warn_for_a_day(tmp_path: Path, name: str, count: int, reason: str) -> None:
    clock = Clock()
    view = node(lay_out(tmp_path, sound() | interrupts(**{name: 7})), clock=clock)
    await run(view)
    clock.now += 300
    lay_out(tmp_path, interrupts(**{name: 7 + count}))
    assert list(reasons(await run(view))) == [reason]
    clock.now += 300
    await run(view)
    clock.now += 86_400
    assert (await run(view)).verdict is Verdict.PASS


async def test_within_a_day_of_the_boot_errors_before_muster_count(tmp_path: Path) -> None:
    view = node(lay_out(tmp_path, sound() | interrupts(MCE=1)), clock=lambda: 3600.0)
    assert reasons(await run(view)) == {"MachineCheckException": Verdict.WARN}


async def test_zombies_warn_above_fifty_a_cpu(tmp_path: Path) -> None:
    files = sound()
    for number in range(200):
        files |= process(1000 + number, "Z", "defunct) S (")
    view = node(lay_out(tmp_path, files), clock=Clock())
    assert (await run(view)).verdict is Verdict.PASS
    lay_out(tmp_path, process(999, "Z"))
    [finding] = (await run(view)).findings
    assert (finding.reason, finding.fault_class) == ("Zombies", FaultClass.RESTART_APP)


async def test_blocked_processes_warn_when_they_are_still_blocked_at_the_next_run(tmp_path: Path) -> None:
    blocked: Files = {}
    for number in range(100, 105):
        blocked |= process(number, "D")
    clock = Clock()
    view = node(lay_out(tmp_path, sound() | blocked), clock=clock)
    assert (await run(view)).verdict is Verdict.PASS
    clock.now += 300
    assert list(reasons(await run(view))) == ["BlockedProcesses"]
    lay_out(tmp_path, process(100, "S"))
    clock.now += 300
    assert (await run(view)).verdict is Verdict.PASS


async def test_an_empty_node_is_unknown(tmp_path: Path) -> None:
    assert reasons(await run(node(tmp_path))) == {"NotReadable": Verdict.UNKNOWN}
    assert reasons(await run(node(tmp_path / "absent"))) == {"NotReadable": Verdict.UNKNOWN}


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    files = (
        process(1, "S") | process(2, "Z") | {"/proc/3/status": "x", "/proc/4/stat": "", "/proc/self/stat": "1 (x) D"}
    )
    found = read_processes(node(lay_out(tmp_path, files)))
    assert (found.total, found.zombies, found.blocked, found.load) == (2, 1, 0, None)


def test_the_topology_is_read(tmp_path: Path) -> None:
    found = read_topology(node(lay_out(tmp_path, sound())))
    assert found.present == found.online == frozenset(range(4))
    assert found.policies == (CpufreqPolicy("policy0", "acpi-cpufreq", "performance", 3400.0),)
    assert (found.smt_off, found.numa_nodes, found.fastest_mhz) == (False, 1, 3400.0)


@pytest.mark.parametrize("name", sound())
async def test_no_value_of_a_file_is_a_failure(tmp_path: Path, name: str) -> None:
    view = node(lay_out(tmp_path, sound()), clock=Clock())
    for value in [*map(str, NO_VALUES), *(text.decode("utf-8", "replace")[:1000] for text in TEXTS)]:
        lay_out(tmp_path, {name: value})
        assert (await run(view, governor="performance")).verdict is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(st.binary())
def test_any_text_can_be_parsed(raw: bytes) -> None:
    assert all(count >= 0 for count in parse_interrupts(raw.splitlines(keepends=True)).values())
    assert all(mhz > 0 for mhz in parse_clocks(raw.decode("utf-8", "replace")))
    parse_list(raw.decode("utf-8", "replace"))


@given(st.frozensets(st.integers(0, 65_535), min_size=1, max_size=50))
def test_a_list_of_cpus_is_read_back(numbers: frozenset[int]) -> None:
    assert parse_list(",".join(map(str, sorted(numbers)))) == numbers
