"""`make chaos`: Muster whole on a real API server, while everything around it breaks; judged by the audit log.

    SEED=N       of the injections and of what goes on in the cluster; default: a new one, printed
    MINUTES=M    of injections (default 10)
    NODES=N      simulated nodes (default 2000)
    JOBS=N       IPUJobs (default 200)

Ends by itself: 0 when the observer has found nothing that must not be. The parts' logs and the audit log go to
build/chaos.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.chaos.chaos import Scale, Verdict, run_chaos
from tests.chaos.observer import FAULTY

from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import install
from muster_sandbox.programs.control_plane import find_or_build

LOGS = Path(__file__).parents[2] / "build" / "chaos"
SHOWN = 40
LAST_LINES = 15  # of a log
STARTS_S = 900.0  # of an API server that 2,000 nodes wait for, on a machine that has other work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--SEED", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--MINUTES", type=float, default=10.0)
    parser.add_argument("--NODES", type=int, default=2000)
    parser.add_argument("--JOBS", type=int, default=200)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("takes root, because it mounts a small disk for some parts: run it with sudo or in a container")
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {line}", flush=True)

    say(f"SEED={arguments.SEED} MINUTES={arguments.MINUTES:g} NODES={arguments.NODES} JOBS={arguments.JOBS}")
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    scale = Scale(arguments.NODES, arguments.JOBS, 60 * arguments.MINUTES)
    with ControlPlane(find_or_build(say), start_timeout_s=STARTS_S) as plane:
        install(plane.admin)
        try:
            verdict = asyncio.run(run_chaos(plane, LOGS, scale, arguments.SEED, say))
        finally:
            try:
                shutil.copy(plane.data / "audit.log", LOGS)
            except OSError as error:  # raised here, it would replace what went wrong before
                say(f"cannot keep the audit log: {error}")
    for line in report(verdict):
        say(line)
    say(f"SEED={arguments.SEED}: {'WRONG' if verdict.violations else 'right'}")
    return 1 if verdict.violations else 0


def report(verdict: Verdict) -> list[str]:
    met = ", ".join(f"{number} {name}" for name, number in sorted(verdict.met.items()) if number)
    ends = ", ".join(f"{number} {how}" for how, number in sorted(verdict.ends.items()))
    return [
        f"{verdict.injections} injections; requests that met bad weather: {met}",
        f"{verdict.writes} writes in the audit log, {verdict.taints} of them the tainter's on Nodes",
        f"jobs at the end: {ends}",
        f"all at rest {verdict.rest_s:.0f} s after the last injection; {verdict.cpu_s:.0f} CPU-seconds",
        *(f"WRONG: {each}" for each in verdict.violations[:SHOWN]),
        *([f"and {len(verdict.violations) - SHOWN} more"] if len(verdict.violations) > SHOWN else []),
    ]


def evidence(folder: Path, plane: Path) -> list[str]:
    """What the parts in ``folder`` and the control plane in ``plane`` left: the jobs' last messages, their pods, nodes
    without a taint whose report or record has a fault, and the last lines of who decides."""
    jobs, pods, nodes, healths = (
        json.loads((folder / f"{name}.json").read_bytes()) for name in ("jobs", "pods", "nodes", "healths")
    )
    lines = [f"job {each['metadata']['name']}: {each.get('status', {}).get('lastMessage', '')}" for each in jobs]
    for pod in pods:
        status = pod.get("status", {})
        conditions = [f"{c['type']}={c['status']} {c.get('message', '')}" for c in status.get("conditions", [])]
        lines.append(f"pod {pod['metadata']['name']}: {status.get('phase')} {pod['spec'].get('nodeName')} {conditions}")
    statuses = {each["metadata"]["name"]: each.get("status", {}) for each in healths}
    for node in nodes:
        status = statuses.get(node["metadata"]["name"], {})
        record = node["metadata"].get("annotations", {}).get("muster.dev/faults", "")
        tainted = any(each["key"] == FAULTY for each in node["spec"].get("taints", ()))
        if tainted or (status.get("verdict") != "FAIL" and '"open"' not in record):
            continue
        lines.append(f"node {node['metadata']['name']}: {status} {record} {node['status'].get('conditions')}")
    logs = [
        *folder.glob("operator-*.log"),
        *folder.glob("tainter-*.log"),
        *folder.glob("vipu-*.log"),
        *plane.glob("kube-[cs]*.log"),
    ]
    for log in sorted(logs):
        lines += [f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-LAST_LINES:]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
