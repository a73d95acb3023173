"""A bed of two nodes with eight devices each."""

from collections.abc import AsyncIterator

import pytest
from tests.cluster.devices.device_bed import DeviceBed

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes


@pytest.fixture
async def devices(api: KubeClient, fleet: SimulatedNodes, namespace: str) -> AsyncIterator[DeviceBed]:
    nodes = await fleet.create(2, prefix=f"{namespace}-gpus", shape=NodeShape(gpus=0, labels={"bed": namespace}))
    bed = DeviceBed(api, namespace, nodes)
    try:
        await bed.start()
        yield bed
    finally:
        await bed.stop()
