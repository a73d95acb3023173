"""A kernel that talks without end: 1,600 lines a second into /dev/kmsg, read and judged by a real agent.

Nobody's hardware is at fault in them but in the last one: that line is found only if none before it has held it up.
"""

import contextlib
import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.bench_agent import BenchAgent, health_object
from harness.bounds import FLOOD_CPU_PERCENT
from harness.footprint import footprint
from harness.progress import say
from line_to_taint import DEVICE, HEALTHS

from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import install
from muster_sandbox.processes import ProcessReaper

NODE = "flood-0"
LINES_PER_S = 1600
TICK_S = 0.01
LAST = "NVRM: Xid (PCI:0000:3c:00): 79, pid=1234, name=muster-bench, GPU has fallen off the bus."
FOUND = "gpu/0000:3c:00.0"
# what fills real logs: firewalls, containers' network interfaces, USB, audit
CHATTER = (
    "IN=eth0 OUT= MAC=52:54:00:12:34:56 SRC=198.51.100.{n} DST=203.0.113.7 LEN=40 TTL=243 PROTO=TCP DPT=23 SYN",
    "cni0: port {n}(veth{n:x}) entered blocking state",
    "cni0: port {n}(veth{n:x}) entered forwarding state",
    "device veth{n:x} left promiscuous mode",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n:x}: link becomes ready",
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    'audit: type=1400 audit(0.0:{n}): apparmor="ALLOWED" operation="open" profile="snap" pid={n} comm="worker"',
    "TCP: request_sock_TCP: Possible SYN flooding on port {n}. Sending cookies.",
)


@dataclass(frozen=True)
class Outcome:
    """read, lost, malformed: the agent's own counts of records. found: the fault in the last line."""

    written: int
    took_s: float
    cpu_s: float
    read: int
    lost: int
    malformed: int
    found: bool
    rss: int


def measure(binaries: Path, lasting_s: float) -> Outcome:
    with (
        ControlPlane(binaries) as plane,
        contextlib.closing(ProcessReaper()) as reaper,
        tempfile.TemporaryDirectory(prefix="muster-bench-") as place,
    ):
        install(plane.admin)
        plane.admin.create(HEALTHS, health_object(NODE))
        # the light checks run as ever: a kernel in trouble does not stop them
        settings = {"checks": {"dmesg": {"parameters": {"start": "now"}}}}
        agent = BenchAgent(plane, reaper, Path(place), NODE, settings)
        try:
            agent.start()
            agent.until_first_pass()
            return _flood(agent, lasting_s)
        finally:
            agent.process.stop()


def _flood(agent: BenchAgent, lasting_s: float) -> Outcome:
    say(f"flood: {LINES_PER_S} lines a second for {lasting_s:.0f} s")
    counts = agent.report()["dmesg"]["counts"]
    before, began = footprint(agent.pid), time.monotonic()
    written = _write(lasting_s)
    took_s = time.monotonic() - began
    after = footprint(agent.pid)
    with DEVICE.open("wb", buffering=0) as device:
        device.write(f"<12>{LAST}\n".encode())
    written += 1
    agent.until(lambda: agent.report()["dmesg"]["counts"]["lines"] - counts["lines"] >= written, "has read every line")
    now = agent.report()["dmesg"]
    return Outcome(
        written=written,
        took_s=took_s,
        cpu_s=after.cpu_s - before.cpu_s,
        read=now["counts"]["lines"] - counts["lines"],
        lost=now["counts"]["lost"] - counts["lost"],
        malformed=now["counts"]["malformed"] - counts["malformed"],
        found=any(finding["component"] == FOUND for finding in now["findings"]),
        rss=after.rss,
    )


def _write(lasting_s: float) -> int:
    """The lines written, evenly; a machine that cannot keep up writes fewer, and the table says so."""
    began, written = time.monotonic(), 0
    texts = itertools.cycle(CHATTER)
    while (passed := time.monotonic() - began) < lasting_s:
        for _ in range(min(int(passed * LINES_PER_S) - written, LINES_PER_S)):
            # opened anew each time: the kernel limits the rate of each open file (printk_devkmsg=ratelimit)
            with DEVICE.open("wb", buffering=0) as device:
                device.write(f"<6>{next(texts).format(n=written % 250)}\n".encode())
            written += 1
        time.sleep(TICK_S)
    return written


def table(outcome: Outcome) -> str:
    rate, percent = outcome.written / outcome.took_s, 100 * outcome.cpu_s / outcome.took_s
    return "\n".join(
        [
            "flood of kernel lines  lines a second   written      read   lost   CPU of a core   last one read   RSS MB",
            f"{'muster agent':<23}{rate:>14.0f} {outcome.written:>9} {outcome.read:>9} {outcome.lost:>6}"
            f"   {percent:>11.2f} %   {'yes' if outcome.found else 'NO':>13}   {outcome.rss / 1e6:>6.1f}",
            f"{'bound':<23}{LINES_PER_S:>14} {'':>9} {'all':>9} {0:>6}   {FLOOD_CPU_PERCENT:>11.2f} %   {'yes':>13}",
        ]
    )
