"""`muster sandbox pod NAME`: create a pod, and print the node to which the real scheduler binds it."""

import asyncio
import sys
import time
from pathlib import Path

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ConfigError, load_config
from muster_kube.api.errors import ApiError
from muster_kube.api.objects import Pod

PODS = "/api/v1/namespaces/default/pods"
WAIT_S = 20.0
LOOK_AGAIN_S = 0.1


def create_pod(kubeconfig: Path, name: str) -> int:
    """Returns 0 if the pod was bound; 3 if the scheduler found no node within :data:`WAIT_S`."""
    try:
        node = asyncio.run(_bind(kubeconfig, name))
    except (ApiError, ConfigError) as error:
        print(f"muster: {error}", file=sys.stderr)
        return 3
    if not node:
        print(f"muster: pod {name}: the scheduler found no node within {WAIT_S:.0f} s", file=sys.stderr)
        return 3
    print(f"pod {name} is bound to {node}")
    return 0


async def _bind(kubeconfig: Path, name: str) -> str:
    # the simulated kubelet pulls no image and runs no container
    spec = {"containers": [{"name": "main", "image": "muster.invalid/none"}], "terminationGracePeriodSeconds": 0}
    async with KubeClient(load_config(kubeconfig), user_agent="muster-cli") as client:
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec})
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            pod = await client.get(f"{PODS}/{name}", type=Pod)
            if pod.spec.node_name:
                return pod.spec.node_name
            await asyncio.sleep(LOOK_AGAIN_S)
        return ""
