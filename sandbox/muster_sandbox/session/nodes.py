"""The nodes of a sandbox: this machine, and simulated nodes, each with its own file system and kernel log."""

import re
import socket
from pathlib import Path
from typing import Any

import psutil

from muster_kube.api.client import KubeClient
from muster_sandbox.session.folder import SandboxNode
from muster_sandbox.session.parts import IPU_LABEL, IPU_LABEL_VALUE
from muster_sandbox.session.reboot import new_boot
from muster_sandbox.simulation.nodes import NODES, SIMULATED, NodeShape, SimulatedNodes, node_object

DEVICE = Path("/dev/kmsg")
SIMULATED_SHAPE = NodeShape(labels={IPU_LABEL: IPU_LABEL_VALUE})


async def create_nodes(client: KubeClient, simulated: int, folder: Path) -> list[SandboxNode]:
    """This machine first, then the simulated nodes, whose files are below ``folder``."""
    name = machine_name()
    await client.create(NODES, machine_node(name))
    nodes = [SandboxNode(name=name, kmsg=str(DEVICE), root="/", simulated=False)]
    for sim in await SimulatedNodes(client).create(simulated, prefix="sim", first=1, shape=SIMULATED_SHAPE):
        root = folder / sim
        new_boot(root)
        nodes.append(SandboxNode(name=sim, kmsg=str(root / "dev/kmsg"), root=str(root), simulated=True))
    return nodes


def machine_node(name: str) -> dict[str, Any]:
    """This machine as a Node, with its CPUs and memory."""
    memory_kib = psutil.virtual_memory().total // 1024
    node = node_object(name, shape=NodeShape(cpu=str(psutil.cpu_count() or 1), memory=f"{memory_kib}Ki", gpus=0))
    del node["metadata"]["labels"][SIMULATED]
    return node


def machine_name() -> str:
    """The host name, converted to a valid Node name."""
    name = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-.")
    return name or "this-machine"
