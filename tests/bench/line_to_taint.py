"""How long from a kernel line to the taint on its node, in one run with the floor under it.

Both ways start at the same moment (just before the write to /dev/kmsg) and end at the same one (a watch delivers the
tainted Node to this process). They take turns, so that both meet the same machine.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from harness.floor import MARK, BareClient, Server, bare_kmsg, watch_lines

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
NODES = "/api/v1/nodes"
ROUND_LIMIT_S = 20.0
TAINT = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
LINE = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=muster-bench, GPU has fallen off the bus."
COMPONENT = "gpu/0000:3b:00.0"  # of the line
DEVICE = Path("/dev/kmsg")


@dataclass
class Sightings:
    """What the watches of this process have delivered: (when, tainted) by node."""

    by_node: dict[str, SimpleQueue[tuple[float, bool]]] = field(default_factory=dict)

    def of(self, node: str) -> SimpleQueue[tuple[float, bool]]:
        return self.by_node.setdefault(node, SimpleQueue())

    def wait_for(self, node: str, *, tainted: bool, since: float = 0.0) -> float:
        """Monotonic seconds when ``node`` was seen so, not before ``since``. Raises TimeoutError."""
        deadline = time.monotonic() + ROUND_LIMIT_S
        while True:
            try:
                when, state = self.of(node).get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError(f"{node} not seen {'tainted' if tainted else 'free'} in {ROUND_LIMIT_S} s") from None
            if state is tainted and when >= since:
                return when


def tainted(node: dict[str, object]) -> bool:
    spec = node.get("spec")
    taints = spec.get("taints", []) if isinstance(spec, dict) else []
    return any(taint["key"] == TAINT["key"] for taint in taints)


@contextmanager
def observer(server: Server, node: str, seen: Sightings) -> Iterator[None]:
    """Watch one Node and put every delivery into ``seen``."""
    stop = threading.Event()

    def run() -> None:
        for when, line in watch_lines(server, f"{NODES}?fieldSelector=metadata.name%3D{node}", stop):
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED"):
                seen.of(node).put((when, tainted(event["object"])))

    with running(stop, run):
        yield


@contextmanager
def running(stop: threading.Event, *work: Callable[[], None]) -> Iterator[None]:
    """Daemon threads: each is in a blocking read of a watch whose server ends with the bench."""
    for each in work:
        threading.Thread(target=each, daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def reported_status() -> dict[str, object]:
    """As large as what the agent writes in this bench: one finding, and sixteen that are over from earlier rounds."""
    told = {"component": "gpu/0000:3b:00.0", "reason": "Floor", "message": "x" * 70}
    at, boot = "2026-01-01T00:00:00.000Z", "0" * 36
    finding = told | {"verdict": "FAIL", "class": "reboot", "firstSeen": at, "lastSeen": at, "origin": "user"}
    check = {
        "name": "dmesg",
        "verdict": "FAIL",
        "reason": "Floor",
        "message": told["message"],
        "lastChange": at,
        "lastOccurrence": 100,
        "findings": [finding | {"count": 1, "occurrence": 100}],
        "cleared": [told | {"occurrence": number, "how": "request", "at": at} for number in range(16)],
    }
    top = {"verdict": "FAIL", "failing": "dmesg", "message": told["message"], "bootID": boot, "observedAt": at}
    return top | {"agent": {"podUID": boot, "version": "0.1.0"}, "checks": [check]}


@contextmanager
def bare_way(agent_server: Server, tainter_server: Server, node: str) -> Iterator[None]:
    """The floor's two hops: kernel log -> NodeHealth, NodeHealth -> Node, with objects as large as the real ones, and
    by the same two accounts (the API server checks a token longer than a certificate)."""
    stop, both_ready = threading.Event(), threading.Barrier(3, timeout=ROUND_LIMIT_S)
    status, annotation = reported_status(), {"muster.dev/faults": "x" * 560}

    def agent() -> None:
        client = BareClient(agent_server)
        for record in bare_kmsg(DEVICE, stop):
            if not record:
                both_ready.wait()
            if MARK.encode() in record:
                client.patch(f"{HEALTHS}/{node}/status", {"status": status})

    def tainter() -> None:
        client = BareClient(tainter_server)
        for _, line in watch_lines(tainter_server, f"{HEALTHS}?fieldSelector=metadata.name%3D{node}", stop):
            if b'"ADDED"' in line:
                both_ready.wait()
            if b'"FAIL"' in line:
                labels = {"muster.dev/faulty": "true", "muster.dev/health": "fail"}
                metadata = {"labels": labels, "annotations": annotation}
                client.patch(f"{NODES}/{node}", {"metadata": metadata, "spec": {"taints": [TAINT]}})

    with running(stop, agent, tainter):
        both_ready.wait()
        yield


def write_line(text: str) -> float:
    """Write one record; returns monotonic seconds just before."""
    # opened anew each time: the kernel limits the rate of each open file (printk_devkmsg=ratelimit)
    with DEVICE.open("wb", buffering=0) as device:
        before = time.monotonic()
        device.write(f"<12>{text}\n".encode())
        return before


def bare_round(client: BareClient, node: str, seen: Sightings) -> float:
    """Seconds of one round of the floor; the node is free again afterwards."""
    began = write_line(f"{MARK} {time.monotonic_ns()}")
    ended = seen.wait_for(node, tainted=True, since=began)
    client.patch(f"{HEALTHS}/{node}/status", {"status": {"verdict": "PASS", "checks": None}})
    client.patch(f"{NODES}/{node}", {"metadata": {"labels": {"muster.dev/faulty": None}}, "spec": {"taints": None}})
    seen.wait_for(node, tainted=False)
    return ended - began


def muster_round(client: BareClient, node: str, seen: Sightings) -> float | None:
    """Seconds of one round of the real thing; the node is cleared by a person's word afterwards. None: another program
    has written a kernel line that the agent found as well, so the taint may be that one's."""
    began = write_line(LINE)
    ended = seen.wait_for(node, tainted=True, since=began)
    alone = {finding.get("component") for finding in findings_of(client, node)} == {COMPONENT}
    clear(client, node)
    seen.wait_for(node, tainted=False, since=began)
    return ended - began if alone else None


def findings_of(client: BareClient, node: str) -> list[dict[str, object]]:
    """All findings that the node's agent reports now."""
    status = client.get(f"{HEALTHS}/{node}")["status"]
    assert isinstance(status, dict)
    return [finding for check in status["checks"] for finding in check.get("findings", [])]


def clear(client: BareClient, node: str) -> None:
    """What `muster clear` writes, until the agent has taken it in. Other programs may write kernel lines meanwhile, so
    it is written again for what has been found since."""
    deadline = time.monotonic() + ROUND_LIMIT_S
    asked = 0
    while time.monotonic() < deadline:
        status = client.get(f"{HEALTHS}/{node}")["status"]
        assert isinstance(status, dict)
        if status["verdict"] == "PASS":
            return
        highest = max((int(str(each.get("occurrence", 1))) for each in findings_of(client, node)), default=0)
        if highest > asked:
            asked = highest
            entry = {"check": "dmesg", "component": "*", "occurrence": highest, "by": "bench"}
            client.patch(f"{HEALTHS}/{node}", {"spec": {"clear": [entry | {"at": "2000-01-01T00:00:00Z"}]}})
        time.sleep(0.005)
    raise TimeoutError(f"{node}: its agent did not take in the clear within {ROUND_LIMIT_S} s")
