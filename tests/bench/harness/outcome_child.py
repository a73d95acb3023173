"""The tainter's watch of pods in a process of its own, over a fleet that is there already.

    python outcome_child.py SERVER CA-FILE NODES

Prints a line of JSON every two seconds: pods counted so far, pods dropped, nodes found.
"""

import asyncio
import gc
import json
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.outcomes.pod_objects import node_object

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.fleet.replica import Replica
from muster_tainter.outcomes.feed import OutcomeWatch
from muster_tainter.outcomes.metrics import OutcomeMetrics
from muster_tainter.policy.sections.in_flight import InFlight

PERIOD_S = 2.0  # each reading of the metrics costs some milliseconds, which would count as the watch's


async def main(server: str, authority: str, nodes: int) -> None:
    config = ClusterConfig(origin="bench", server=server, ca=Path(authority).read_bytes())
    names = [f"node-{i}" for i in range(nodes)]
    fleet = FakeFleet(
        nodes={name: node_object(name) for name in names},
        external_findings=ExternalFindings(lambda _: None),
    )
    registry = CollectorRegistry()
    async with KubeClient(config, max_connections=4) as client:
        replica = Replica(may_write=lambda: True)
        watch = OutcomeWatch(client, fleet, replica, OutcomeMetrics(registry), InFlight())
        running = asyncio.create_task(watch.run())
        gc.collect()
        gc.freeze()  # as the tainter does at its start
        while not running.done():
            await asyncio.sleep(PERIOD_S)
            state = {
                "connected": watch.pods.connected,
                "counted": _sum(registry, "muster_tainter_outcomes_pods_total"),
                "dropped": _sum(registry, "muster_tainter_outcomes_dropped_total"),
                "found": sorted(fleet.external_findings.nodes()),
            }
            print(json.dumps(state), flush=True)
        running.result()


def _sum(registry: CollectorRegistry, name: str) -> float:
    samples = (sample for family in registry.collect() for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
