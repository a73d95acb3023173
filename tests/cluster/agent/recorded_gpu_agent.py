"""Agents of nodes with eight GPUs each, whose tools print what has been recorded; the rest of them is real."""

import json
import os
import re
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import uuid4

from tests.cluster.agent.test_agent_publishing import AgentProcess

from muster_checks.registry import load_registry
from muster_checks.testing.recorded import lay_out

TESTS = Path(__file__).parents[2]
NVBANDWIDTH = TESTS / "checks/pciebw/samples/nvbandwidth-8.json"
DIAGNOSIS = TESTS / "checks/dcgm/samples/diag_pass.json"
ADDRESSES = [f"0000:{bus}:00.0" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")]
# the founding page's
FIRST = ["12.3", "12.3", "12.3", "12.3", "5.3", "12.3", "12.3", "12.3"]
SECOND = ["12.1", "12.0", "12.3", "12.3", "11.9", "11.5", "12.1", "12.1"]
Answer = TypeVar("Answer")
CHECKS = MappingProxyType({"pciebw": {"parameters": {"min_bandwidth_gb_per_s": 8}}, "dcgm": {}, "dmesg": {}})


def gpus(root: Path, addresses: Sequence[str] = ADDRESSES) -> None:
    """GPUs in slots of PCIe 3.0 x16."""
    lay_out(root, {"/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"})
    listed = root / "sys/bus/pci/devices"
    listed.mkdir(parents=True)
    for place, address in enumerate(addresses):
        device = root / f"sys/devices/pci0000:{place:02x}/0000:{place:02x}:01.0/{address}"
        device.mkdir(parents=True)
        for folder in (device, device.parent):
            (folder / "max_link_speed").write_text("8.0 GT/s PCIe\n")
            (folder / "max_link_width").write_text("16\n")
        for name, content in {"vendor": "0x10de", "device": "0x20b2", "class": "0x030200"}.items():
            (device / name).write_text(f"{content}\n")
        (listed / address).symlink_to(device)


def tools(folder: Path, bandwidths: Sequence[str], addresses: Sequence[str] = ADDRESSES) -> Path:
    """nvbandwidth and dcgmi that print what was recorded; ``calls`` there has dcgmi's command lines."""
    folder.mkdir()
    of = {old: new.removesuffix(".0") for old, new in zip(ADDRESSES, addresses, strict=True)}
    recorded = re.sub(r"(0000:..:00)(?=\))", lambda found: of[f"{found[1]}.0"], NVBANDWIDTH.read_text())
    report = json.loads(recorded)
    for test in report["nvbandwidth"]["testcases"]:
        test["bandwidth_matrix"] = [list(bandwidths)]
    (folder / "nvbandwidth.json").write_text(json.dumps(report))
    scripts = {
        "nvbandwidth": f"cat {folder}/nvbandwidth.json",
        "dcgmi": f'echo "$*" >> {folder}/calls\n[ "$1" = diag ] && exec cat {DIAGNOSIS}\nexit 1',
    }
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


class Repeats:
    """Asks again where a node is unreachable, as a starved peer may miss the three seconds of a connection: only twice
    in all, so that calls which fail at first every time are noticed."""

    def __init__(self) -> None:
        self.left = 2

    def of(self, ask: Callable[[], Answer], expected: Callable[[Answer], object] = str) -> Answer:
        """What ``ask`` returns. expected: the part of it that has to be of nodes which are reached."""
        while "Unreachable" in str(expected(answer := ask())):
            assert self.left, answer
            self.left -= 1
        return answer


class FleetAgent(AgentProcess):
    """An agent with tools of its own on its PATH, listening where its fleet finds it.

    checks:   those that are on, with their settings
    inside:   the beginning of a command line that runs the rest of it somewhere (``ip netns exec NAME``)
    addresses: of the node's GPUs
    settings: more of the agent's own
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        kubeconfig: Path,
        host: str,
        bandwidths: Sequence[str],
        *,
        port: int = 0,
        checks: Mapping[str, Mapping[str, object]] = CHECKS,
        inside: Sequence[str] = (),
        addresses: Sequence[str] = ADDRESSES,
        **settings: object,
    ) -> None:
        gpus(folder / "root", addresses)
        self.tools = tools(folder / "bin", bandwidths, addresses)
        enabled = {name: dict(checks.get(name, {"enabled": False})) for name in load_registry()}
        config = folder / "agent.yaml"
        config.write_text(json.dumps({**settings, "checks": enabled}))
        flags = ("--config", str(config), "--root", str(folder / "root"), "--host", host, "--port", str(port))
        super().__init__(folder, node, kubeconfig, *flags, inside=inside)
        self.environment["PATH"] = f"{self.tools}:{os.environ['PATH']}"
        self.host = host

    def reboot(self) -> None:
        """The node's: the agent starts in a new boot, whose kernel log has no fault."""
        self.kill()
        (self.folder / "root/proc/sys/kernel/random/boot_id").write_text(f"{uuid4()}\n")
        self.kmsg.write_text("[1.000000] Linux version 6.8.0\n")
        self.start()

    def ask(self, query: str, **headers: str) -> str:
        """As curl would; the answer has to be one."""
        request = urllib.request.Request(f"http://{self.host}:{self.port}/status?{query}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=300) as answer:
            return str(answer.read().decode())

    def nodes(self, query: str) -> dict[str, dict[str, Any]]:
        return {node["node"]: node for node in json.loads(self.ask(f"{query}&format=json"))["nodes"]}
