"""An agent that has nothing to do: its memory, its processor time and what it asks of the API server, beside
Debian's node exporter in the same run and the same window, both scraped alike.

The requests are counted by the API server (its audit log), not by the agent.
"""

import contextlib
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.bench_agent import BenchAgent, always_on, health_object
from harness.bounds import AGENT_CPU_PERCENT, AGENT_RSS_MB
from harness.footprint import Footprint, footprint
from harness.node_exporter import VERSION, NotToBeHad, find_or_fetch
from harness.progress import say
from line_to_taint import HEALTHS

from muster_sandbox.controlplane.audit import READS, AuditLog
from muster_sandbox.controlplane.cluster import ControlPlane, free_ports
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, install
from muster_sandbox.processes import ManagedProcess, ProcessReaper, wait_for

NODE = "idle-0"
SCRAPE_S = 15.0  # Prometheus' usual rhythm in a cluster is 15 to 60 s
SETTLE_S = 60.0  # after the first pass of all checks: what a start costs is not idleness, nor what it then gives back
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{AGENT}"


@dataclass
class Watched:
    """A process over the window. most_rss: in bytes, of all looks within it."""

    name: str
    pid: int
    url: str
    begun: Footprint
    ended: Footprint
    most_rss: int = 0

    def look(self) -> None:
        self.ended = footprint(self.pid)
        self.most_rss = max(self.most_rss, self.ended.rss)


@dataclass
class Outcome:
    window_s: float
    watched: list[Watched]
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of the API server within the window, by (verb, resource); by the agent's account."""
    found: dict[str, str] = field(default_factory=dict)
    """Checks that found something on this machine: then the agent is not quite idle."""
    missing: str = ""
    """Why there is no node exporter."""


def measure(binaries: Path, window_s: float) -> Outcome:
    with (
        ControlPlane(binaries) as plane,
        contextlib.closing(ProcessReaper()) as reaper,
        tempfile.TemporaryDirectory(prefix="muster-bench-") as place,
    ):
        install(plane.admin)
        plane.admin.create(HEALTHS, health_object(NODE))
        # what is in this machine's kernel log already, or written there by programs, is no fault of an idle node
        quiet = {"checks": {"dmesg": {"parameters": {"start": "now", "user_lines": "refuse"}}}}
        agent = BenchAgent(plane, reaper, Path(place), NODE, quiet)
        exporter: ManagedProcess | None = None
        outcome = Outcome(window_s, [])
        try:
            agent.start()
            outcome.watched.append(_watched("muster agent", agent.pid, f"http://127.0.0.1:{agent.port}/metrics"))
            try:
                exporter, url = _exporter(find_or_fetch(), reaper, Path(place))
            except NotToBeHad as error:
                outcome.missing = str(error)
            else:
                assert exporter.pid is not None
                outcome.watched.append(_watched(f"node exporter {VERSION}", exporter.pid, url))
            _settle(agent)
            _watch(outcome, plane.audit, window_s)
            agent.process.require_alive()
            outcome.found = {
                name: f"{result['verdict']} {result['reason']}".strip()
                for name, result in agent.report().items()
                if name in always_on() and result["verdict"] not in ("PASS", "SKIP")
            }
        finally:
            agent.process.stop()
            if exporter is not None:
                exporter.stop()
    return outcome


def _exporter(program: Path, reaper: ProcessReaper, folder: Path) -> tuple[ManagedProcess, str]:
    """Debian's defaults, but for the address."""
    (port,) = free_ports(1)
    exporter = ManagedProcess(
        "node exporter", [str(program), f"--web.listen-address=127.0.0.1:{port}"], folder / "exporter.log", reaper
    )
    exporter.start()
    url = f"http://127.0.0.1:{port}/metrics"
    wait_for(lambda: _answers(url), alive=[exporter], timeout_s=60, what="the node exporter's /metrics")
    return exporter, url


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        _scrape(url)
        return True
    return False


def _scrape(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - one of ours, on loopback
        answer.read()


def _settle(agent: BenchAgent) -> None:
    say("idle: first pass of all light checks")
    agent.until_first_pass()
    time.sleep(SETTLE_S)


def _watch(outcome: Outcome, audit: AuditLog, window_s: float) -> None:
    say(f"idle: {window_s:.0f} s, scraped every {SCRAPE_S:.0f} s")
    since = audit.mark()
    began = time.monotonic()
    for each in outcome.watched:
        each.begun = footprint(each.pid)
    scrape_at = began
    while (left := began + window_s - time.monotonic()) > 0:
        for each in outcome.watched:
            each.look()
            if time.monotonic() >= scrape_at:
                _scrape(each.url)
        if time.monotonic() >= scrape_at:
            scrape_at += SCRAPE_S
        time.sleep(min(1.0, left))
    for each in outcome.watched:
        each.look()
    outcome.window_s = time.monotonic() - began
    until = audit.mark()
    for (user, verb, resource), times in audit.count(since, until).items():
        if user == ACCOUNT:
            outcome.asked[verb, resource] += times


def _watched(name: str, pid: int, url: str) -> Watched:
    now = footprint(pid)
    return Watched(name, pid, url, now, now)


def table(outcome: Outcome) -> str:
    lines = [
        f"{f'idle for {outcome.window_s:.0f} s':<28} RSS MB   most   own   peak  CPU of a core   API writes   API reads"
    ]
    writes = sum(times for (verb, _), times in outcome.asked.items() if verb not in READS)
    reads = sum(times for (verb, _), times in outcome.asked.items() if verb in READS)
    for number, each in enumerate(outcome.watched):
        percent = 100 * (each.ended.cpu_s - each.begun.cpu_s) / outcome.window_s
        asked = f"{writes:>10}   {reads:>9}" if number == 0 else f"{'-':>10}   {'-':>9}"
        lines.append(
            f"{each.name:<28}{each.ended.rss / 1e6:>7.1f} {each.most_rss / 1e6:>6.1f} {each.ended.own / 1e6:>5.1f}"
            f" {each.ended.peak / 1e6:>6.1f}"
            f"   {percent:>10.2f} %   {asked}"
        )
    lines.append(f"{'bound':<28}{AGENT_RSS_MB:>7.1f} {'':>6} {'':>5} {'':>6}   {AGENT_CPU_PERCENT:>10.2f} %   {0:>10}")
    if outcome.missing:
        lines.append(f"node exporter not measured: {outcome.missing}")
    lines += [f"asked of the API server: {verb} {what}, {times} times" for (verb, what), times in outcome.asked.items()]
    if outcome.found:
        found = ", ".join(f"{name} ({what})" for name, what in outcome.found.items())
        lines.append(f"not an idle node's own: on this machine something was found by {found}")
    return "\n".join(lines)
