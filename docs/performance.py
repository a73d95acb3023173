"""Makes docs/performance.md and its pictures from the bench's results (docs/performance.json).

A promise whose part has not been measured is shown as such, never as met.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curves
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "bench"))

from harness import bounds  # noqa: E402  # lies beside the bench

RESULTS = HERE / "performance.json"
WORDS = HERE / "performance.yaml"
PAGE = HERE / "performance.md"
NOTE = "<!-- made by `make generate` from docs/performance.json, which `make bench` writes; edits are overwritten -->"
NOT_MEASURED = "not measured yet"

Outcome = Any  # of a part, as JSON has it


@dataclass(frozen=True)
class Judged:
    """met: None if a part of the promise has not been measured."""

    figure: str
    met: bool | None


@dataclass(frozen=True)
class Promise:
    """judge: of the part's outcome."""

    what: str
    bound: str
    part: str
    judge: Callable[[Outcome], Judged]


def _percentile(values: list[float], percent: int) -> float:
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def _latency(outcome: Outcome) -> Judged:
    found = []
    met = True
    for each in outcome:
        floor, muster = each["floor_ms"], each["muster_ms"]
        p50 = statistics.median(muster) / statistics.median(floor)
        p99 = _percentile(muster, 99) / _percentile(floor, 99)
        met &= p50 <= bounds.LATENCY_P50 and p99 <= bounds.LATENCY_P99
        found.append(f"{p50:.2f}x and {p99:.2f}x ({each['fleet']:,})")
    missing = [f"{fleet:,}" for fleet in bounds.LATENCY_FLEETS if fleet not in {each["fleet"] for each in outcome}]
    if missing:
        found.append(f"not measured: {' and '.join(missing)}")
    return Judged(", ".join(found), None if missing and met else met)


def _burst(outcome: Outcome) -> Judged:
    ratios = [each["muster"] / max(each["threads"], each["coroutines"]) for each in outcome]
    median = statistics.median(ratios)
    return Judged(f"{median:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", median >= bounds.BURST)


def _selectivity(outcome: Outcome) -> Judged:
    tainted, others = outcome["tainted"], outcome["others"]
    return Judged(f"{tainted} tainted, {others} others", tainted == 200 and others == 0)


def _outage(outcome: Outcome) -> Judged:
    taken = outcome["stopped_s"] + outcome["killed_s"]
    p99 = _percentile(taken, 99)
    return Judged(f"P50 {_percentile(taken, 50):.2f} s, P99 {p99:.2f} s, {len(taken)} times", p99 < bounds.OUTAGE_P99_S)


def _idle(outcome: Outcome) -> Judged:
    agent = outcome["watched"][0]
    rss = agent["most_rss"] / 1e6
    cpu = (agent["ended"]["cpu_s"] - agent["begun"]["cpu_s"]) / outcome["window_s"] * 100
    writes = sum(count for kind, count in outcome["asked"].items() if kind.split()[0] not in ("get", "list", "watch"))
    met = rss <= bounds.AGENT_RSS_MB and cpu <= bounds.AGENT_CPU_PERCENT and writes == 0
    return Judged(f"{rss:.1f} MB, {cpu:.2f} % of a core, {writes} writes", met)


def _flood(outcome: Outcome) -> Judged:
    cpu = outcome["cpu_s"] / outcome["took_s"] * 100
    unread = outcome["written"] - outcome["read"]
    met = cpu <= bounds.FLOOD_CPU_PERCENT and unread <= 0 and outcome["lost"] == 0
    return Judged(f"{cpu:.2f} % of a core, {max(unread, 0)} unread, {outcome['lost']} lost", met)


def _sync(outcome: Outcome) -> Judged:
    cpu_s = outcome["synced"]["cpu_s"] - outcome["empty"]["cpu_s"]
    each_node = (outcome["rest"]["rss"] - outcome["empty"]["rss"]) / outcome["nodes"]
    return Judged(
        f"{cpu_s:.2f} s, {each_node:.0f} bytes", cpu_s <= bounds.SYNC_CPU_S and each_node <= bounds.NODE_BYTES
    )


def _jobs(outcome: Outcome) -> Judged:
    reads = (": get", ": list")
    written = sum(count for kind, count in outcome["written"].items() if not kind.endswith(reads))
    needed = sum(outcome["needed"].values())
    others = sum(
        count
        for kind, count in outcome["written"].items()
        if kind not in outcome["needed"] and not kind.endswith(reads)
    )
    counted = outcome["counted"]
    return Judged(
        f"{written / counted:.1f} of {needed / counted:.1f}, {others} of them refused or something else",
        written <= needed and others == 0,
    )


def _at_rest(outcome: Outcome) -> Judged:
    most = max(each["rest_requests"] for each in outcome["fleets"])
    return Judged(f"at most {most:.2f} requests a second beside the Lease", most == 0)


def _laws(outcome: Outcome) -> Judged:
    fast = [law["cost"] for law in outcome["laws"] if law["too_fast"]]
    if fast:
        return Judged("; ".join(fast), met=False)
    of_jobs = any(law["cost"].startswith("jobs") for law in outcome["laws"])
    found = f"none of {len(outcome['laws'])} costs does"
    return Judged(found, met=True) if of_jobs else Judged(f"{found}; too few numbers of jobs", met=None)


def _first_taint(outcome: Outcome) -> Judged:
    first_s, standby_s = outcome["started"]["first_s"], outcome["standby"]["from_lease_s"]
    return Judged(
        f"{first_s:.1f} s; {standby_s:.2f} s from its lease on for a standby",
        max(first_s, standby_s) < bounds.FIRST_TAINT_S,
    )


def _reboots(outcome: Outcome) -> Judged:
    p99_s = _percentile(outcome["failed_ms"], 99) / 1000
    wrong = outcome["tainted_reboots"]
    return Judged(
        f"P99 {p99_s:.2f} s, {wrong} of the rebooted nodes tainted", p99_s < bounds.REBOOT_P99_S and not wrong
    )


def _spares(outcome: Outcome) -> Judged:
    most = max(outcome["released_s"])
    rounds = len(outcome["refilled_s"])
    met = most <= bounds.SPARE_RELEASE_S and outcome["exhausted"] == rounds
    return Judged(
        f"at most {most:.3f} s, {len(outcome['released_s'])} times; "
        f"exhausted and refilled in {outcome['exhausted']} of {rounds} rounds",
        met,
    )


def _outcomes(outcome: Outcome) -> Judged:
    cpu = outcome["steady_share"] * 100
    more = (outcome["burst"]["peak"] - outcome["idle"]["rss"]) / 1e6
    met = cpu <= bounds.OUTCOMES_CPU_PERCENT and more <= bounds.OUTCOMES_RSS_MB and outcome["dropped"] == 0
    return Judged(f"{cpu:.1f} % of a core, {more:.1f} MB at most", met)


PROMISES = (
    Promise(
        f"kernel line to taint, against the floor, in fleets of {', '.join(f'{n:,}' for n in bounds.LATENCY_FLEETS)}",
        f"P50 {bounds.LATENCY_P50}x, P99 {bounds.LATENCY_P99}x",
        "latency",
        _latency,
    ),
    Promise(
        "500 faults that wait for the tainter, against the better bare client",
        f"at least {bounds.BURST}",
        "burst",
        _burst,
    ),
    Promise(
        "200 fatal findings among 1,800 harmless ones",
        "exactly these 200 nodes are tainted",
        "selectivity",
        _selectivity,
    ),
    Promise(
        "kernel line to taint after 30 s without API server",
        f"P99 {bounds.OUTAGE_P99_S:g} s from its return",
        "outage",
        _outage,
    ),
    Promise(
        "new leader over 15,000 nodes with 500 open faults",
        f"first taint within {bounds.FIRST_TAINT_S:g} s of its start, or of its lease",
        "takeover",
        _first_taint,
    ),
    Promise(
        "taints while 5,000 healthy nodes reboot at once",
        f"P99 {bounds.REBOOT_P99_S:g} s, none of the 5,000",
        "takeover",
        _reboots,
    ),
    Promise(
        "taint to the release of a spare, 20 nodes with 2 spares",
        f"{bounds.SPARE_RELEASE_S:g} s; a third fault exhausts them, recovered nodes refill them",
        "spares",
        _spares,
    ),
    Promise(
        "idle agent", f"{bounds.AGENT_RSS_MB:g} MB, {bounds.AGENT_CPU_PERCENT} % of a core, no API write", "idle", _idle
    ),
    Promise(
        "agent under 1,600 kernel lines a second",
        f"{bounds.FLOOD_CPU_PERCENT} % of a core, all lines read",
        "flood",
        _flood,
    ),
    Promise(
        "tainter of 15,000 nodes",
        f"{bounds.SYNC_CPU_S:g} s of CPU to start, {bounds.NODE_BYTES:,} bytes a node",
        "sync",
        _sync,
    ),
    Promise("tainter at rest", "no request but its Lease", "growth", _at_rest),
    Promise(
        "no cost grows faster than the fleet or the number of jobs",
        "exponent 1; 0 for what one fault costs",
        "growth",
        _laws,
    ),
    Promise(
        "1,000 IPUJobs of 8 workers",
        "API writes of a job: its objects, changes of status, intents; nothing else",
        "jobs",
        _jobs,
    ),
    Promise(
        "watch of ending pods, 15,000 nodes",
        f"{bounds.OUTCOMES_CPU_PERCENT:g} % of a core at 100 a second, "
        f"{bounds.OUTCOMES_RSS_MB:g} MB for 100,000 at once",
        "outcomes",
        _outcomes,
    ),
)


@dataclass(frozen=True)
class Tested:
    """A promise that the tests hold on a real API server, by its audit log. test: a file below tests/."""

    what: str
    bound: str
    test: str


TESTED = (
    Tested("agent at rest", "no request but its watch", "cluster/agent/test_agent_publishing.py"),
    Tested("operator at rest", "no request about jobs", "cluster/ipujob_api/test_api_cost.py"),
    Tested("V-IPU proxy at rest", "no write, no question to V-IPU", "cluster/ipujob_api/test_vipu_proxy.py"),
    Tested("a whole cluster at rest", "no list, no write but Leases", "cluster/commands/test_sandbox_idle.py"),
    Tested(
        "canaries, where a policy has them",
        "one write a period and node, and one when the section changes",
        "cluster/tainter/test_canary.py",
    ),
)


def files() -> dict[Path, str]:
    parts: dict[str, Any] = json.loads(RESULTS.read_text())["parts"]
    pictures = _pictures(parts)
    words = yaml.safe_load(WORDS.read_text())
    lines = [words["introduction"].replace("NOTE", NOTE), "## Promises", "", *_promises(parts), ""]
    for section in words["sections"]:
        of_part = [name for name in pictures if section["part"] in name]
        lines += _section(section, parts.get(section["part"]), of_part)
    return {PAGE: "\n".join([*lines, words["soak"]]), **{HERE / name: text for name, text in pictures.items()}}


def _promises(parts: dict[str, Any]) -> Iterator[str]:
    yield "| promise | bound | measured | state | part of `make bench` |"
    yield "|---|---|---|---|---|"
    for promise in PROMISES:
        if promise.part not in parts:
            yield f"| {promise.what} | {promise.bound} | {NOT_MEASURED} | **open** | `{promise.part}` |"
            continue
        judged = promise.judge(parts[promise.part]["outcome"])
        state = {True: "met", False: "**not met**", None: "**open**"}[judged.met]
        yield f"| {promise.what} | {promise.bound} | {judged.figure} | {state} | `{promise.part}` |"
    yield from ("", "These are counted by tests, in every run of them:", "")
    yield "| promise | bound | test below `tests/` |"
    yield "|---|---|---|"
    for tested in TESTED:
        yield f"| {tested.what} | {tested.bound} | `{tested.test}` |"


def _section(section: dict[str, str], run: dict[str, Any] | None, pictures: list[str]) -> Iterator[str]:
    """Without a run, too: other pages link to the headings."""
    yield from (f"## {section['title']}", "", section["text"].rstrip(), "")
    if run is None:
        yield from ("Not measured yet.", "")
        return
    for line in run["table"].splitlines():
        yield f"    {line}".rstrip()
    yield ""
    for name in pictures:
        yield f"![{section['title']}]({name})"
        yield ""
    machine = run["machine"]
    real_time = ", with real-time priority" if run["options"].get("real_time") else ""
    yield (
        f"{run['at'][:10]}, commit {run['commit']}, Kubernetes {machine['kubernetes']}, Python {machine['python']}, "
        f"Linux {machine['kernel']}, {machine['cores']} cores ({machine['processor']}), load {machine['load']:g}"
        f"{real_time}; took {run['seconds']} s."
    )
    yield ""


def _pictures(parts: dict[str, Any]) -> dict[str, str]:
    """The curves of growth, by file name."""
    if "growth" not in parts:
        return {}
    outcome = parts["growth"]["outcome"]
    fleets = [each for each in outcome["fleets"] if each["nodes"]]
    empty = [each for each in outcome["fleets"] if not each["nodes"]]
    laws = {law["cost"]: law for law in outcome["laws"]}

    def curve(cost: str, name: str, scale: float = 1.0) -> curves.Curve:
        base = (
            min((each[name] for each in empty), default=0.0)
            if cost in ("start: CPU", "start: bytes", "memory")
            else 0.0
        )
        law = laws[cost]["fit"]
        ends = [min(each["nodes"] for each in fleets), laws[cost]["extrapolated_at"]]
        line = [(size, law["factor"] * size ** law["exponent"] * scale) for size in ends]
        return curves.Curve(cost, [(each["nodes"], (each[name] - base) * scale) for each in fleets], line)

    found = {
        "performance-growth-fleet.svg": curves.chart(
            "What a fleet costs its tainter",
            "nodes",
            "seconds, MB",
            [
                curve("start: CPU", "start_cpu_s"),
                curve("start: bytes", "start_bytes", 1e-6),
                curve("memory", "rss_bytes", 1e-6),
            ],
        ),
        "performance-growth-fault.svg": curves.chart(
            "What one fault costs",
            "nodes",
            "ms, kB, requests",
            [
                curve("fault: CPU", "fault_cpu_s", 1e3),
                curve("fault: bytes", "fault_bytes", 1e-3),
                curve("fault: requests", "fault_requests"),
                _latency_curve(fleets, laws),
            ],
        ),
    }
    if outcome["jobs"]:
        runs = outcome["jobs"]
        found["performance-growth-jobs.svg"] = curves.chart(
            "What jobs cost the operator and the V-IPU proxy",
            "jobs",
            "seconds, thousand writes, kB",
            [
                _jobs_curve(runs, laws, "jobs: CPU of operator and proxy", "cpu_s", 1.0),
                _jobs_curve(runs, laws, "jobs: API writes", "writes", 1e-3),
                _jobs_curve(runs, laws, "jobs: tracker", "tracker_bytes", 1e-3),
            ],
        )
    return found


def _latency_curve(fleets: list[dict[str, Any]], laws: dict[str, Any]) -> curves.Curve:
    law = laws["fault: finding to taint, P50"]
    sizes = (min(each["nodes"] for each in fleets), law["extrapolated_at"])
    line = [(size, law["fit"]["factor"] * size ** law["fit"]["exponent"]) for size in sizes]
    points = [(each["nodes"], _percentile(each["fault_ms"], 50)) for each in fleets]
    return curves.Curve("finding to taint, P50", points, line)


def _jobs_curve(runs: list[dict[str, Any]], laws: dict[str, Any], cost: str, name: str, scale: float) -> curves.Curve:
    points = [(each["jobs"], each[name] * scale) for each in runs]
    if cost not in laws:
        return curves.Curve(cost.removeprefix("jobs: "), points)
    law = laws[cost]["fit"]
    sizes = (runs[0]["jobs"], runs[-1]["jobs"])
    line = [(size, law["factor"] * size ** law["exponent"] * scale) for size in sizes]
    return curves.Curve(cost.removeprefix("jobs: "), points, line)
