"""The sample's training job with an MPI program that a real node can run, and how its end is waited for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.chart.real_node_images import MPI
from tests.polling import pause_s

from muster_sandbox.realnode.node import RealNode

SAMPLE = Path(__file__).parents[2] / "operator/samples/ipujob_training_single_gcd.yaml"
LIMIT_S = 180.0  # far beyond what a slow machine takes
CONTAINER = "trainer"  # as the sample calls it
# every rank says what its worker was given, and adds to a sum over all of them
PROGRAM = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
gcd = os.environ["IPUOF_VIPU_API_GCD_ID"]
level = os.environ["POPLAR_LOG_LEVEL"]
print(f"rank {world.rank} of {world.size} has GCD {gcd}, log level {level}, sum {total}", flush=True)
"""


def training_job(namespace: str, workers: int) -> dict[str, Any]:
    """The sample's as it stands, but for image, program and the number of workers."""
    body: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    body["metadata"]["namespace"] = namespace
    spec = body["spec"]
    spec["workerPerJobInstance"] = str(workers)
    spec["workers"]["replicas"] = workers
    container = spec["workers"]["template"]["spec"]["containers"][0]
    assert container["name"] == CONTAINER
    container |= {"image": MPI, "imagePullPolicy": "Never"}
    launcher = spec["launcher"]
    assert launcher["command"][:7] == ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "1", "python3"]
    launcher["command"] = [*launcher["command"][:5], str(workers), "python3", "-c", PROGRAM]
    return body


def printed_by(size: int) -> list[str]:
    """What the program prints: rank N runs in worker N, whose GCD is N."""
    total = sum(range(1, size + 1))
    return [f"rank {rank} of {size} has GCD {rank}, log level INFO, sum {total}" for rank in range(size)]


def until(true: Callable[[], Any], what: Callable[[], str]) -> Any:
    """What ``true`` returned. Fails with ``what``."""
    begun = time.monotonic()
    while not (found := true()):
        assert time.monotonic() < begun + LIMIT_S, what()
        time.sleep(pause_s(begun))
    return found


def state_of(node: RealNode, namespace: str) -> str:
    """For a test that failed."""
    told = node.kubectl("-n", namespace, "describe", "ipujobs,pods").stdout
    return f"{told}\n--- kubelet\n{node.log()}"


def ended(node: RealNode, namespace: str, pod: str) -> str:
    """The phase that ``pod`` ends in; it need not be there yet."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"

    def phase() -> str:
        admin = node.plane.admin
        found = admin.get(path)["status"].get("phase", "") if admin.exists(path) else ""
        return found if found in ("Succeeded", "Failed") else ""

    return str(until(phase, lambda: state_of(node, namespace)))


def logs(node: RealNode, namespace: str, pod: str, container: str = CONTAINER) -> str:
    return node.kubectl("-n", namespace, "logs", pod, "-c", container).stdout


def ranks(log: str) -> list[str]:
    return sorted(line for line in log.splitlines() if line.startswith("rank "))
