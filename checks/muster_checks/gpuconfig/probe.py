"""Takes the shared GPU reading and reads the ACS registers of the switches above GPUs."""

from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.gpuconfig import NAME, GpuconfigParameters
from muster_checks.gpuconfig.acs import judge_ports, read_ports
from muster_checks.gpuconfig.judge import counters, judge, sees_all_processes
from muster_checks.nvidia.judge import read_counted


async def probe(node: NodeView, parameters: GpuconfigParameters) -> list[Finding]:
    sees_all = sees_all_processes(node)
    reading, series = await read_counted(node, NAME, lambda reading: counters(reading, sees_all))
    return [*judge(reading, series, parameters, sees_all), *judge_ports(await in_thread(node, read_ports, node))]
