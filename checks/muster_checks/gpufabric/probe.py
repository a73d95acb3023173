"""Takes the shared GPU reading and records which GPUs are not yet registered with their fabric."""

from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.gpufabric import NAME, GpufabricParameters
from muster_checks.gpufabric.judge import judge, unregistered
from muster_checks.nvidia.probe import read_gpus


async def probe(node: NodeView, parameters: GpufabricParameters) -> list[Finding]:
    reading = await read_gpus(node)
    node.history.note(NAME, unregistered(reading))
    return judge(reading, node.history.of(NAME), parameters)
