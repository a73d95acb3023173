"""The agent of a host whose IPUs are what files say: Graphcore's tools replayed, the rest of it real."""

import json
import os
from pathlib import Path

from tests.checks.graphcore.sample import sample
from tests.cluster.agent.test_agent_publishing import AgentProcess

from muster_checks.registry import load_registry
from muster_checks.testing.recorded import lay_out

MACHINE = "10.1.1.1"  # the simulator's first IPU-Machine
LINE = "-+- Id: [{0}], target: [Fabric], IPU-M host: [" + MACHINE + "], IPU#: [{0}]"
SCRIPTS = {
    # all looks of one run see the same: it begins with the list. Each look at an IPU is noted
    "gc-info": '[ "$1" = -l ] && exec cat list\n'
    '[ -e "fails-once-$2" ] && rm "fails-once-$2" && echo failed >> "looks-$2" && exec cat bad\n'
    'echo usual >> "looks-$2"\nexec cat "ipu-$2"',
    "python3": "exec cat health",
    "gc-monitor": "exec cat monitor",
    "gc-links": "exec cat links",
    "gc-iputraffictest": "exec cat traffic",
    "gc-hostsynclatencytest": "exec cat sync",
}
IPU = sample("gc_info_device_m2000.txt").decode()
BAD = IPU.replace("ipu error state: no errors", "ipu error state: parity")


class IpuHost(AgentProcess):
    """Four IPUs of one IPU-Machine, device ids as their indices. What tools print is in ``tools``."""

    def __init__(self, folder: Path, node: str, kubeconfig: Path) -> None:
        lay_out(folder / "root", {"/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"})
        (folder / "root/dev").mkdir()
        self.tools = folder / "bin"
        self.tools.mkdir()
        for name, body in SCRIPTS.items():
            (self.tools / name).write_text(f"#!/bin/sh\ncd {self.tools}\n{body}\n")
            (self.tools / name).chmod(0o755)
        self.lists(0, 1, 2, 3)
        for number in range(4):
            self.says(f"ipu-{number}", IPU)
        self.says("bad", BAD)
        self.says("health", "{}")
        self.says("monitor", "")
        self.says("links", sample("gc_links_pod.json").decode())
        self.says("traffic", sample("gc_iputraffictest.json").decode())
        self.says("sync", sample("gc_hostsynclatencytest.json").decode())
        checks = {
            "ipu": {"parameters": {"first_interval_s": 0}, "period": "0"},  # when asked only
            "ipulink": {"period": "0"},
        }
        enabled = {name: checks.get(name, {"enabled": False}) for name in load_registry()}
        config = folder / "agent.yaml"
        config.write_text(json.dumps({"checks": enabled}))
        super().__init__(folder, node, kubeconfig, "--config", str(config), "--root", str(folder / "root"))
        self.environment |= {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "IPUOF_CONFIG_PATH": "/etc/ipuof.conf",
            # the code under test, wherever it lies
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }

    def says(self, file: str, text: str) -> None:
        new = self.tools / f"{file}.new"
        new.write_text(text)
        new.replace(self.tools / file)

    def lists(self, *numbers: int) -> None:
        """Those of the partitions that this host knows."""
        listed = map(LINE.format, numbers)
        self.says("list", "\n".join(["Graphcore device listing:", "Partition: p1 [active]", *listed, ""]))

    def unhealthy(self, *numbers: int) -> None:
        """As gcipuinfo tells it."""
        listed = [
            {"error": "device", "id": str(each), "partition": "p1", "board ipu index": str(each)} for each in numbers
        ]
        self.says("health", json.dumps({"hosts": {MACHINE: listed}} if numbers else {}))


def component(number: int) -> str:
    return f"ipu/{MACHINE}/{number}"
