"""A real node: kubelet and containerd in a separate machine (:mod:`muster_sandbox.realnode.containers`), with a
control plane on its network. It is Ready after about 20 s.

It does not use the API server of other tests, because it would run their pods. Kubeconfigs of :attr:`RealNode.plane`
work both here and in the machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from muster_sandbox.controlplane.cluster import ControlPlane, free_ports, read_minor_version
from muster_sandbox.controlplane.components import Placement
from muster_sandbox.image.layers import Image
from muster_sandbox.processes import ManagedProcess, ProcessDied, ProcessReaper, wait_for
from muster_sandbox.programs.binaries import NoControlPlane, find_kubelet
from muster_sandbox.realnode import namespace_relay, services
from muster_sandbox.realnode.containers import ADDRESS, DNS, SERVICE, NestedMachine, find_obstacle

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of its own is made in it
SHARED_MEMORY_LEAST = 4 << 30  # bytes: images twice, and what containers write


def find_node_obstacle() -> str:
    """Why a real node cannot be started here; empty if it can."""
    if reason := find_obstacle():
        return reason
    try:
        find_kubelet()  # of the requested version
    except NoControlPlane as error:
        return str(error)
    return ""


_PASSAGE = (sys.executable, "-m", namespace_relay.__name__)


class RealNode:
    """A context manager. images: what the node has, the one of :data:`containers.PAUSE` among them.

    Raises ProcessDied, TimeoutError or RuntimeError, with the log that says why.
    """

    def __init__(
        self,
        *,
        binaries: Path,
        kubelet: Path,
        runtime: Path,
        images: Sequence[Image],
        name: str = "node-a",
        limit_s: float = 180.0,
    ) -> None:
        self.name = name
        self._binaries = binaries
        self._kubelet = kubelet
        self._runtime = runtime
        self._images = images
        self._limit_s = limit_s
        self._reaper: ProcessReaper | None = None
        self._components: list[ManagedProcess] = []
        self._machine: NestedMachine | None = None
        self._plane: ControlPlane | None = None
        self._data: Path | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def plane(self) -> ControlPlane:
        if self._plane is None:
            raise RuntimeError("the node is not running")
        return self._plane

    @property
    def machine(self) -> NestedMachine:
        if self._machine is None:
            raise RuntimeError("the node is not running")
        return self._machine

    @property
    def data(self) -> Path:
        if self._data is None:
            raise RuntimeError("the node is not running")
        return self._data

    def kubectl(self, *words: str, timeout_s: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """Run kubectl as an administrator."""
        command = ["kubectl", f"--kubeconfig={self.plane.kubeconfig}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def lend(self, port: int) -> None:
        """127.0.0.1:``port`` on the machine, its API server's loopback, leads here from now on: for a webhook."""
        self._open_passage(f"way-out-{port}", [*self.machine.on_its_network, *_PASSAGE, str(os.getpid()), str(port)])

    def log(self) -> str:
        """The end of the kubelet's log, for a failed test."""
        return "".join(each.tail() for each in self._components if each.name == "kubelet")

    def _start(self) -> None:
        self._reaper = ProcessReaper()
        roomy = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= SHARED_MEMORY_LEAST
        self._data = Path(tempfile.mkdtemp(prefix="muster-node-", dir=SHARED_MEMORY if roomy else None))
        self._reaper.remove_at_end(self._data)
        self._machine = NestedMachine(self._data, self._runtime, self._reaper)
        self._machine.start(self._limit_s)
        with ThreadPoolExecutor(1) as pool:
            containers = pool.submit(self._start_containers, self._machine)
            self._start_plane(self._machine)
            containers.result()
        self._start_kubelet(self._machine)

    def _start_containers(self, machine: NestedMachine) -> None:
        machine.start_containerd(self._limit_s)
        machine.import_images(self._images, self._limit_s)

    def _start_plane(self, machine: NestedMachine) -> None:
        etcd, api = free_ports(2)
        service = f"--service={SERVICE}:443={api}"
        self._open_passage("way-in", [*_PASSAGE, service, str(machine.pid), str(etcd), str(api)])
        plane = ControlPlane(
            self._binaries,
            placement=Placement(enter=machine.on_its_network, ports=(etcd, api)),
            # names of nodes are in no DNS
            # and webhooks are called at their pods, as there is no kube-proxy
            extra_args={
                "kube-apiserver": ["--kubelet-preferred-address-types=InternalIP", "--enable-aggregator-routing=true"]
            },
            start_timeout_s=self._limit_s,
        )
        self._plane = plane.start()
        command = [*machine.on_its_network, sys.executable, "-m", services.__name__]
        where = [str(plane.kubeconfig), DNS, str(machine.services)]
        self._start_relay("services", [*command, *where], services.READY)

    def _start_kubelet(self, machine: NestedMachine) -> None:
        config = self.data / "kubelet.yaml"
        minor = read_minor_version(self._kubelet)
        config.write_text(yaml.safe_dump(self._kubelet_config(machine, minor)))
        command = [
            *machine.inside,
            str(self._kubelet),
            f"--config={config}",
            f"--kubeconfig={self.plane.kubeconfig_for_node(self.name)}",
            f"--root-dir={self.data / 'kubelet'}",
            f"--cert-dir={self.data / 'kubelet-pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={ADDRESS}",
        ]
        if minor < 24:
            command += ["--container-runtime=remote", f"--container-runtime-endpoint=unix://{machine.socket}"]
        kubelet = self._component("kubelet", command)
        wait_for(self._is_ready, alive=[kubelet], timeout_s=self._limit_s, what="the node's readiness")

    def _kubelet_config(self, machine: NestedMachine, minor: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",  # noqa: S104 - of the machine within
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{machine.group.name}",
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "failSwapOn": False,
            "healthzPort": 0,
            # the disk of a developer's machine may be full: that is not what is tested
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "5s",
            "readOnlyPort": 0,
            "resolvConf": "",
            "volumePluginDir": str(self.data / "plugins"),
        }
        if minor < 26:
            # it would keep its sockets in /var/lib/kubelet, whatever --root-dir says; nothing here has devices
            config["featureGates"] = {"DevicePlugins": False}
        if minor >= 27:
            config["containerRuntimeEndpoint"] = f"unix://{machine.socket}"
        if minor >= 31:
            config["failCgroupV1"] = False
        return config

    def _open_passage(self, name: str, command: Sequence[str]) -> None:
        self._start_relay(name, command, namespace_relay.READY)

    def _start_relay(self, name: str, command: Sequence[str], ready: str) -> None:
        relay = self._component(name, command)
        wait_for(lambda: ready in relay.tail(), alive=[relay], timeout_s=self._limit_s, what=name)

    def _is_ready(self) -> bool:
        path = f"/api/v1/nodes/{self.name}"
        if not self.plane.admin.exists(path):
            return False
        conditions = self.plane.admin.get(path)["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _component(self, name: str, command: Sequence[str]) -> ManagedProcess:
        if self._reaper is None:
            raise ProcessDied("the node is not running")
        component = ManagedProcess(name, command, self.data / f"{name}.log", self._reaper)
        self._components.append(component)
        component.start()
        return component

    def stop(self) -> None:
        """Stop everything that was started. Does nothing if nothing runs."""
        for component in reversed(self._components):
            component.kill()
        self._components = []
        try:
            if self._machine is not None:
                self._machine.stop()
        finally:
            self._machine = None
            if self._plane is not None:
                self._plane.stop()
                self._plane = None
            if self._reaper is not None:
                self._reaper.close()
                self._reaper = None
            if self._data is not None:
                shutil.rmtree(self._data, ignore_errors=True)
                self._data = None
