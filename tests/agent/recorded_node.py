"""A node that has all that checks look for: eight GPUs and an NVSwitch, the four IPUs of an IPU-Machine, NICs, disks, a
management controller. Its files and what its tools print have been recorded; clock, memory and network are this
machine's.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.checks.cpu.test_cpu import sound as cpus
from tests.checks.cuda.fake_driver import address, driver
from tests.checks.graphcore.sample import sample
from tests.checks.ib.port_tree import H100_PORTS, lay_out_ports
from tests.checks.ipmi.test_ipmi import LOG, SENSORS
from tests.checks.memory.test_memory import sound as memory
from tests.checks.nccl.test_nccl import SAMPLE as ALL_REDUCE
from tests.checks.nic.conftest import Node as Interfaces
from tests.checks.nvidia.samples_of import H100, NVLINK_STATUS
from tests.checks.os.test_os import HEALTHY as LIMITS
from tests.checks.pcielink.machines import H100 as MODEL
from tests.checks.pcielink.machines import NVME, NVSWITCH, ROOT_PORT, Machine
from tests.cluster.agent.ipu_host import IPU, LINE
from tests.cluster.agent.ipu_host import SCRIPTS as GRAPHCORE
from tests.cluster.agent.recorded_gpu_agent import DIAGNOSIS, NVBANDWIDTH
from tests.cluster.agent.test_agent_publishing import LISTENING

from muster_checks.nvidia.smi_xml import parse
from muster_checks.testing.recorded import lay_out

CHECKS = Path(__file__).parents[1] / "checks"
GPUS = [address(index) for index in range(8)]
# what each tool does, in the folder of what it prints; ``calls`` there has their command lines, with the partition
TOOLS = GRAPHCORE | {
    "gc-hosttraffictest": "exec cat host-traffic",
    "nvidia-smi": '[ "$1" = nvlink ] && exec cat nvlink\nexec cat smi',
    "nvbandwidth": "exec cat nvbandwidth",
    "dcgmi": '[ "$1" = diag ] && exec cat diagnosis\nexit 1',
    "all_reduce_perf": "exec cat all-reduce",
    "smartctl": "exec cat smart",
    "ipmitool": '[ "$1" = sensor ] && exec cat sensors\n[ "$2" = elist ] && exec cat log\nexec cat now',
    "chronyc": "exec cat tracking",
    "systemctl": "exec cat units",
    "vipu": "exec cat partitions",
}


def _smi() -> bytes:
    """With the addresses that the CUDA driver has for its GPUs."""
    text = H100
    for gpu, own in zip(parse(H100).gpus, GPUS, strict=True):
        assert gpu.address
        text = text.replace(gpu.address.encode(), own.encode()).replace(gpu.address.upper().encode(), own.encode())
    return text


def _printed() -> dict[str, bytes]:
    ipus = "\n".join(["Graphcore device listing:", "Partition: p1 [active]", *map(LINE.format, range(4)), ""])
    return {
        "smi": _smi(),
        "nvlink": NVLINK_STATUS,
        "nvbandwidth": NVBANDWIDTH.read_bytes(),
        "diagnosis": DIAGNOSIS.read_bytes(),
        "all-reduce": ALL_REDUCE,
        "smart": (CHECKS / "disk/samples/smartctl_nvme.json").read_bytes(),
        "sensors": SENSORS,
        "log": LOG,
        "now": b"07/13/2026 23:10:00\n",  # ten hours and more after the log's faults
        "tracking": (CHECKS / "clock/samples/synchronised.csv").read_bytes(),
        "units": (CHECKS / "services/samples/gpu-node.txt").read_bytes(),
        "list": ipus.encode(),
        **{f"ipu-{number}": IPU.encode() for number in range(4)},
        "health": b"{}",
        "monitor": b"",
        "links": sample("gc_links_pod.json"),
        "traffic": sample("gc_iputraffictest.json"),
        "host-traffic": sample("gc_hosttraffictest.json"),
        "sync": sample("gc_hostsynclatencytest.json"),
        "partitions": sample("vipu_list_partitions.txt"),
    }


def tools(folder: Path) -> Path:
    folder.mkdir()
    for name, body in TOOLS.items():
        said = f'echo "{name} $*${{IPUOF_VIPU_API_PARTITION_ID:+ of $IPUOF_VIPU_API_PARTITION_ID}}" >> calls'
        (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{said}\n{body}\n")
        (folder / name).chmod(0o755)
    for name, text in _printed().items():
        (folder / name).write_bytes(text)
    return folder


def files(root: Path) -> Path:
    machine = Machine(root)
    for place, gpu in enumerate(GPUS):
        machine.add(f"0000:{place:02x}:01.0", ROOT_PORT).add(gpu, MODEL, f"0000:{place:02x}:01.0")
    machine.add("0000:c0:01.0", ROOT_PORT).add("0000:c1:00.0", NVME, "0000:c0:01.0")
    machine.add("0000:d0:01.0", ROOT_PORT).add("0000:d1:00.0", NVSWITCH, "0000:d0:01.0")
    (root / "sys/bus/pci/drivers/nvme").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:c1:00.0/driver").symlink_to(root / "sys/bus/pci/drivers/nvme")
    interfaces = Interfaces(root)
    for number in range(2):
        interfaces.add(f"ens{number}np0", address=f"0000:a{number}:00.0", speed=25000)
    lay_out_ports(root / "sys/class/infiniband", H100_PORTS)
    lay_out(root, {**cpus(), **memory(), **LIMITS})
    return lay_out(
        root,
        {
            "/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            "/proc/modules": "nvidia 56717312 1 - Live 0x0",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock",
            "/sys/class/nvme/nvme0/state": "live",
            "/run/systemd/system/units": "",
            "/dev/ipmi0": "",
        },
    )


class RecordedNode:
    """namespace: its network; etc: the files of its /etc. ``folder`` is where lines are typed."""

    def __init__(self, folder: Path, namespace: str, etc: Mapping[str, str]) -> None:
        self.folder, self._namespace = folder, namespace
        self._etc, self._root, self.tools = folder / "etc", folder / "root", folder / "bin"
        lay_out(self._etc, etc)
        self._root.mkdir()
        files(self._root)
        tools(self.tools)

    @contextmanager
    def agent(self) -> Iterator[None]:
        """One on port 3333, that knows no cluster and does nothing unless it is asked."""
        config, kernel_log = self.folder / "agent.yaml", self.folder / "kernel.log"
        config.write_text("repeat: 0\n")
        kernel_log.touch()
        command = [
            *(sys.executable, "-m", "muster_agent", "--node", "node-1", "--root", str(self._root)),
            *("--kmsg", str(kernel_log), "--state-dir", str(self.folder / "state"), "--config", str(config)),
        ]
        with (
            (self.folder / "agent.log").open("wb") as log,
            subprocess.Popen(
                [*self.inside("etc"), *command], env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                assert LISTENING.match(process.stdout.readline()), self.log
                yield
            finally:
                process.kill()

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def asks(self, line: str, status: int = 200) -> str:
        """What a line with curl prints."""
        (self.folder / ".curlrc").write_text('write-out = "%{stderr}%{http_code}"\nsilent\nshow-error\n')
        done = subprocess.run(
            [*self.inside(), *shlex.split(line)],
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},  # no proxy
            cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, str(status)), f"{line}: {done.stderr} {done.stdout}\n{self.log}"
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """With the node's tools, and its GPUs' driver."""
        return {
            "PATH": f"{self.tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": "/nonexistent",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the code under test, wherever it lies
            "LD_LIBRARY_PATH": str(driver().parent),
            "FAKE_COUNT": str(len(GPUS)),
        }

    def inside(self, *own: str) -> list[str]:
        """The beginning of a command line: the rest of it runs here, under the same process id. own: folders that it
        sees at the root, in the mount namespace that `ip netns exec` makes."""
        mounts = "".join(f"mount --bind {self.folder / each} /{Path(each).name} && " for each in own)
        return ["ip", "netns", "exec", self._namespace, "sh", "-c", f'{mounts}exec "$@"', "sh"]
