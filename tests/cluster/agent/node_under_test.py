"""A node whose agent runs, and whose one heavy check, an operator's own executable, takes as long as a test wants."""

from pathlib import Path
from typing import Any

from tests.agent.kernel_log_only import kernel_log_only
from tests.agent.kubelet_socket import Kubelet, devices, pod
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.tainter.test_end_to_end import HEALTHS

from muster_kube.api.client import KubeClient

NODES = "/api/v1/nodes"
TESTING = "muster.dev/testing"
CHECK = "burnin"
PLUGIN = f"kind: nagios\nname: {CHECK}\ncommand: [./burnin.sh]\ncost: heavy\ntimeout_s: 300\n"
# it ends when it may, or when it is ended; or when its agent was killed and it has become an orphan
SCRIPT = """#!/bin/sh
parent=$PPID
echo begun >> {place}/begun
while [ ! -e {place}/may_end ] && kill -0 $parent 2>/dev/null; do sleep 0.05; done
echo ended >> {place}/ended
echo fine
"""
TRAINING = pod("train-0", devices("nvidia.com/gpu", "GPU-1"))


class NodeUnderTest:
    """Its agent is started by whoever makes it, its kubelet's socket as well."""

    def __init__(self, api: KubeClient, name: str, place: Path, kubeconfig: Path) -> None:
        self._api = api
        self.name = name
        self.place = place
        self.kubelet = Kubelet()
        plugins = place / "plugins"
        plugins.mkdir(parents=True)
        (plugins / f"{CHECK}.yaml").write_text(PLUGIN)
        (plugins / "burnin.sh").write_text(SCRIPT.format(place=place))
        (plugins / "burnin.sh").chmod(0o755)
        config = kernel_log_only(place, plugins=str(plugins), pod_resources=str(self.socket))
        self.agent = AgentProcess(place, name, kubeconfig, "--config", str(config), "--pod-uid", f"pod-of-{name}")

    @property
    def socket(self) -> Path:
        return self.place / "kubelet.sock"

    def times(self, what: str) -> int:
        """How often a run has ``begun``, or ``ended`` by itself."""
        file = self.place / what
        return len(file.read_text().splitlines()) if file.exists() else 0

    def may_end(self, yes: bool = True) -> None:
        file = self.place / "may_end"
        file.touch() if yes else file.unlink(missing_ok=True)

    async def health(self) -> dict[str, Any]:
        return await self._api.get(f"{HEALTHS}/{self.name}")

    async def status(self) -> dict[str, Any]:
        return dict((await self.health()).get("status", {}))

    async def asked(self) -> list[str]:
        return [request["id"] for request in (await self.health()).get("spec", {}).get("requests", [])]

    async def node(self) -> dict[str, Any]:
        return await self._api.get(f"{NODES}/{self.name}")

    async def label(self) -> str | None:
        return (await self.node())["metadata"]["labels"].get(TESTING)

    async def is_due(self) -> bool:
        return (await self.status()).get("due") == [CHECK]

    async def is_under_test(self) -> bool:
        return self.times("begun") > self.times("ended") and await self.label() == CHECK

    async def is_through(self) -> bool:
        """Tested, and nothing is left of it."""
        status = await self.status()
        over = not status.get("due") and not status.get("answers") and not await self.asked()
        return over and self.times("ended") > 0 and await self.label() is None

    def close(self) -> None:
        self.may_end()
        self.agent.close()
