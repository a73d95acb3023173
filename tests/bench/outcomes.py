"""What the tainter's watch of pods takes: for a fleet of 15,000 nodes on which 100 pods end a second, and for 100,000
pods that end at once. One node rejects all pods of one controller meanwhile, and has to be found.

The API server is stood in for, over TLS: a real one cannot make so many pods on this machine. It sends what a real one
would, 9 kB each time and one by one: a pod when it has ended, when its Job has counted it, and when it is deleted.
"""

import asyncio
import contextlib
import json
import random
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bounds import OUTCOMES_CPU_PERCENT, OUTCOMES_RSS_MB
from harness.footprint import Footprint, footprint
from harness.progress import say

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tainter.outcomes.pod_objects import GPU_LOST, ended, pod_object

from muster_kube.webhook.key_pairs import make_key_pair

NODES = 15_000
RATE = 100  # pods a second
BURST = 100_000
BATCH_S = 0.002
REST_S = 5.0
LIMIT_S = 600.0  # far more than anything takes
BAD = "node-7"
CHILD = Path(__file__).parent / "harness/outcome_child.py"


@dataclass(frozen=True)
class Outcome:
    """steady_share: of a core, at RATE for steady_s; burst_*: all at once. found: nodes with a finding."""

    idle: Footprint
    steady: Footprint
    steady_share: float
    burst: Footprint
    burst_pods: int
    burst_s: float
    counted: float
    dropped: float
    found: tuple[str, ...]


class PodServer:
    """Serves an empty list of pods, and then what is sent to the watch."""

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter | None = None
        self.version = 1
        self._pad = [{"name": f"VARIABLE_{i}", "value": "x" * 60} for i in range(60)]
        self._fields = {"f:status": {f"f:field-{i}": {".": {}, "f:type": {}} for i in range(60)}}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"watch=1" in head.split(b"\r\n", 1)[0]:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                    )
                    self.writer = writer
                    await writer.wait_closed()
                body = b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}'
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                )
                writer.write(body)
                await writer.drain()

    async def send(self, events: list[bytes]) -> None:
        """Each in a chunk of its own, as an API server does."""
        assert self.writer is not None
        for event in events:
            self.writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await self.writer.drain()

    def event(self, kind: str, pod: dict[str, Any]) -> bytes:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        pod["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": self._fields}]
        pod["spec"]["containers"][0]["env"] = self._pad
        return json.dumps({"type": kind, "object": pod}).encode() + b"\n"


def life(server: PodServer, number: int, rng: random.Random) -> list[bytes]:
    """All events of one pod."""
    now = time.time()
    node, name, gpus = f"node-{rng.randrange(NODES)}", f"pod-{number}", rng.choice((0, 1, 8))
    shape: dict[str, Any] = {
        "node": node,
        "namespace": f"team-{number % 50}",
        "owner": ("Job", f"job-{number // 64}"),
        "gpus": gpus,
        "created": now - 60,
        "bound": now - 50,
    }
    if number % 500 == 0:
        shape |= {"node": BAD, "gpus": 1}
        rejected = pod_object(name, **shape, phase="Failed", reason="UnexpectedAdmissionError", message=GPU_LOST)
        return [server.event("ADDED", rejected)]
    fails = rng.random() < 0.05
    status = [ended("Error" if fails else "Completed", exit_code=int(fails), at=now)]
    end = pod_object(name, **shape, phase="Failed" if fails else "Succeeded", containers=status)
    return [server.event(kind, end) for kind in ("ADDED", "MODIFIED", "DELETED")]


def measure(steady_s: float = 60.0, burst: int = BURST) -> Outcome:
    return asyncio.run(_measure(steady_s, burst))


async def _measure(steady_s: float, burst: int) -> Outcome:
    server, rng = PodServer(), random.Random(11)
    async with _listening(server) as (url, authority), _child(url, authority) as child:
        await child.until(lambda: bool(child.state.get("connected")), "the watch is up")
        await asyncio.sleep(REST_S)
        idle = footprint(child.pid)
        say(f"outcomes: {RATE} pods a second for {steady_s:.0f} s")
        sent, began = 0, time.monotonic()
        while (passed_s := time.monotonic() - began) < steady_s:
            due = int(passed_s * RATE)
            await server.send([event for number in range(sent, due) for event in life(server, number, rng)])
            sent = due
            await asyncio.sleep(BATCH_S)
        await child.until(lambda: child.state["counted"] + child.state["dropped"] >= sent, "all are counted")
        took_s, steady = time.monotonic() - began, footprint(child.pid)
        say(f"outcomes: {burst} pods at once")
        began = time.monotonic()
        for first in range(sent, sent + burst, 200):
            await server.send([life(server, number, rng)[0] for number in range(first, first + 200)])
        sent += burst
        await child.until(lambda: child.state["counted"] + child.state["dropped"] >= sent, "all are counted")
        return Outcome(
            idle=idle,
            steady=steady,
            steady_share=(steady.cpu_s - idle.cpu_s) / took_s,
            burst=footprint(child.pid),
            burst_pods=burst,
            burst_s=time.monotonic() - began,
            counted=child.state["counted"],
            dropped=child.state["dropped"],
            found=tuple(child.state["found"]),
        )


@contextlib.asynccontextmanager
async def _listening(server: PodServer) -> AsyncIterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as place:
        pair = make_key_pair(["127.0.0.1"], time.time())
        certificate, key = Path(place) / "tls.crt", Path(place) / "tls.key"
        authority = Path(place) / "ca.crt"
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        authority.write_bytes(pair.authority)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
        port = listener.sockets[0].getsockname()[1]
        try:
            yield f"https://127.0.0.1:{port}", authority
        finally:
            listener.close()


class _Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.state: dict[str, Any] = {}

    async def until(self, done: Any, what: str) -> None:
        """Raises TimeoutError."""
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while not (self.state and done()):
                line = await self._process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the watch of pods has ended, before {what}")
                self.state = json.loads(line)


@contextlib.asynccontextmanager
async def _child(url: str, authority: Path) -> AsyncIterator[_Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), url, str(authority), str(NODES), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield _Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def table(outcome: Outcome) -> str:
    steady_mb = (outcome.steady.rss - outcome.idle.rss) / 1e6
    burst_mb = (outcome.burst.peak - outcome.idle.rss) / 1e6
    burst_cpu_s = outcome.burst.cpu_s - outcome.steady.cpu_s
    found = "only the bad node" if outcome.found == (BAD,) else f"{outcome.found}"
    return "\n".join(
        [
            f"pods that end, {NODES} nodes         CPU of a core    CPU s   RSS MB more   counted, dropped   found",
            f"{f'{RATE} a second':<32} {outcome.steady_share:14.1%} {outcome.steady.cpu_s - outcome.idle.cpu_s:8.1f} "
            f"{steady_mb:13.1f}",
            f"{f'{outcome.burst_pods} at once, in {outcome.burst_s:.0f} s':<32} {burst_cpu_s / outcome.burst_s:14.1%} "
            f"{burst_cpu_s:8.1f} {burst_mb:13.1f} {f'{outcome.counted:.0f}, {outcome.dropped:.0f}':>18}   {found}",
            f"{'bound':<32} {OUTCOMES_CPU_PERCENT:13.1f}% {'':8} {OUTCOMES_RSS_MB:13.1f}",
        ]
    )


if __name__ == "__main__":
    print(table(measure()))
