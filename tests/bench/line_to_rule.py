"""How long from a kernel line to the DeviceTaintRule for its GPU, in one run with the floor of kernel line to taint.

Where the server has no DeviceTaintRules, the stand-in of the cluster tests takes their place: it costs the API server
more than the real ones, which are no custom resources.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.floor import BareClient, Server, watch_lines
from line_to_taint import Sightings, clear, running, write_line

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cluster.devices.device_objects import device_slice
from tests.cluster.devices.stand_in import serve_devices

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_tainter.devices.api_versions import find_api

POLICY = """
rules:
  - {name: hardware, match: {verdict: FAIL, class: [reset, reboot, replace, contact]}, action: taint, holdDown: 0s}
devices: {quarantine: rules}
"""
# the second GPU of device_slice; a class of fault that asks for a reset of the device, not of its node
LINE = "NVRM: Xid (PCI:0000:11:00): 95, pid=1234, name=muster-bench, Uncontained"


async def publish_devices(kubeconfig: Path, node: str) -> str:
    """Eight GPUs of the node, as their driver publishes them. Returns the path of DeviceTaintRules."""
    async with KubeClient(load_config(kubeconfig), user_agent="muster-bench") as client:
        await serve_devices(client)
        served = await find_api(client)
        body: dict[str, Any] = {"apiVersion": f"resource.k8s.io/{served.slice_version}", "kind": "ResourceSlice"}
        await client.create(served.slices, body | device_slice(node))
        return served.rules


@contextmanager
def rule_observer(server: Server, rules: str, node: str, seen: Sightings) -> Iterator[None]:
    """Watch the rules and put into ``seen``, for the name ``node``, whether there is one."""
    stop, there = threading.Event(), set[str]()

    def run() -> None:
        for when, line in watch_lines(server, f"{rules}?labelSelector=muster.dev%2Fdevice-quarantine", stop):
            event = json.loads(line)
            change = there.discard if event["type"] == "DELETED" else there.add
            change(event["object"]["metadata"]["name"])
            seen.of(node).put((when, bool(there)))

    with running(stop, run):
        yield


def rule_round(client: BareClient, node: str, watched: str, seen: Sightings) -> float:
    """Seconds of one round; the device is cleared by a person's word afterwards. watched: as in the sightings."""
    began = write_line(LINE)
    ended = seen.wait_for(watched, tainted=True)
    clear(client, node)
    seen.wait_for(watched, tainted=False)
    return ended - began
