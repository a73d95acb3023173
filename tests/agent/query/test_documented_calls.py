"""The calls of docs/checks.md, typed as they stand there into the real curl, on a node that has all they ask about."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.agent.network_fabric import fabric
from tests.agent.recorded_node import RecordedNode
from tests.docs.command_list import commands_of_test
from tests.machine import require

LONG = "curl -G -d @nodes.txt"
LINES = sorted(commands_of_test(__file__) - {LONG})
LOADING = ("membw", "iperf")  # this machine itself
# what membw says, truly, when something beside it has the processors
DISTURBED = "UNKNOWN numa/0 Disturbed: "
PEERS = ("10.0.0.7", "10.0.0.8")  # of the page; the first one serves iperf3
PVC = "NoRights: "  # an agent asks the tainter, and none is here


class Said(NamedTuple):
    """verdict: the page's word; told: what else stands in the answer; called: a command line that a tool was given."""

    verdict: str = "SUCCESS"
    told: str = ""
    called: str = ""


SAID = {
    "clock": Said(),
    "clock&max_offset_s=0.001&clocksource=tsc": Said("WARN", "kvm-clock"),
    "cpu": Said(),
    "cpu&min_cpus=224&governor=performance": Said("FAIL", "CpusMissing: 4 CPUs"),
    "dcgm": Said(called="dcgmi diag -r 1 -j"),
    "dcgm&r=3": Said(called="dcgmi diag -r 3 -j"),
    "disk": Said(),
    "disk&min_nvme=8&paths=/,/var/lib/kubelet,/scratch": Said("FAIL", "1 local NVMe disks"),
    "dmesg": Said(),
    "gpuconfig": Said(),
    "gpuconfig&max_idle_memory_mib=15": Said(),
    "gpucount": Said(),
    "gpucount&expected_count=8": Said(),
    "gpuecc": Said(),
    "gpuecc&max_corrected_per_hour=1000": Said(),
    "gpufabric": Said(),
    "gpumem": Said(),
    "gpumem&memory_share=0.5": Said(),
    "gpupower": Said(),
    "gputemp": Said(),
    "ib": Said(),
    "ib&ports=mlx5_?&expected_ports=8&min_rate_gb_per_s=400": Said(),
    "inventory&expected=/etc/muster/devices.yaml": Said("FAIL", "8 of 9 pci devices 10de:2330"),
    "iperf&server=10.0.0.7&link_gbit_per_s=100": Said("WARN", "SlowPair: node-1 to 10.0.0.7: slow"),
    "ipmi": Said("FAIL", "MemoryUncorrectable"),
    "ipmi&window_s=3600": Said("WARN", "SensorCritical"),
    "ipu": Said(called="gc-info -l"),
    "ipu&partition=p1": Said(called="gc-info -l of p1"),
    "ipulink": Said(),
    "ipulink&partition=p1&vipu_api_host=10.1.5.1": Said(
        "WARN", "PartitionMissing", "vipu list partitions --api-host 10.1.5.1"
    ),
    "membw": Said(),
    "membw&min_bandwidth_gb_per_s=150": Said("FAIL", "expected 150"),
    "memory": Said(),
    "memory&min_total_gib=1000&min_dimms=32": Said("FAIL", "2 DIMMs"),
    "nccl": Said(),
    "nccl&min_bus_bandwidth_gb_per_s=440": Said(),
    "nic": Said(),
    "nic&min_speed_mbit_per_s=100000&min_speed_of=ens*np*": Said("FAIL", "ens0np0"),
    "nvlink": Said("FAIL", "link 3 down"),
    "nvlink&max_recoveries_per_day=1": Said("FAIL", "link 3 down"),
    "os": Said(),
    "os&modules=nvidia_peermem": Said("WARN", "modprobe nvidia_peermem"),
    "pciebw": Said("WARN", "to_device=25 GB/s (threshold 15.75)"),
    "pciebw&min_bandwidth_gb_per_s=20": Said("WARN", "to_device=25 GB/s (threshold 20)"),
    "pcielink": Said(),
    "pcielink&max_replays_per_minute=20": Said(),
    "ping": Said("SKIP", "NoPeers: "),
    "ping&peers=all": Said("SKIP", "NoPeers: "),
    "ping&peers=node-7=10.0.0.7,node-8=10.0.0.8": Said(),
    "pvc": Said("UNKNOWN", PVC),
    "pvc&storage_class=fast": Said("UNKNOWN", PVC),
    "remapped": Said(),
    "services": Said("FAIL", "nvidia-fabricmanager.service: failed"),
    "services&units=kubelet.service,containerd.service": Said(),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedNode]:
    require("curl", "iperf3", "ping")
    etc = {"muster/devices.yaml": "[{kind: pci, match: '10de:2330', count: 9}]"}
    with fabric(2) as links:
        here, there = links.hosts.values()
        links.ip(here, "addr", "add", "10.0.0.1/24", "dev", "eth0")
        for each in PEERS:
            links.ip(there, "addr", "add", f"{each}/24", "dev", "eth0")
        links.rate("eth0", "100mbit")
        made = RecordedNode(tmp_path_factory.mktemp("node"), here, etc)
        served = ["ip", "netns", "exec", there, "iperf3", "-s", "--forceflush", "-B", PEERS[0]]
        with made.agent(), subprocess.Popen(served, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                while b"Server listening" not in (line := server.stdout.readline()):
                    assert line
                yield made
            finally:
                server.kill()


def query_of(line: str) -> str:
    return urlsplit(f"//{shlex.split(line)[-1]}").query


def check_of(line: str) -> str:
    return parse_qs(query_of(line))["check"][0]


def test_it_is_said_what_each_line_comes_to() -> None:
    assert {query_of(line).removeprefix("check=") for line in LINES} == set(SAID)


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.alone] if check_of(line) in LOADING else []) for line in LINES]
)
def test_a_line_is_answered_as_it_stands(node: RecordedNode, line: str) -> None:
    query = query_of(line)
    said = SAID[query.removeprefix("check=")]
    calls = node.tools / "calls"
    calls.unlink(missing_ok=True)

    text = node.asks(line)
    if check_of(line) == "membw" and DISTURBED in text:
        said = Said("UNKNOWN")

    asked = re.search(r"^url\(s\): http://127\.0\.0\.1:3333/status\?(\S+)$", text, re.MULTILINE)
    assert asked, text
    assert parse_qs(asked[1]) == parse_qs(query) | {"host": ["node-1"]}, "every parameter was taken"
    assert f"\n[[ {check_of(line).upper()} ]] {said.verdict}\nHost  node-1\n" in text, text
    assert said.told in text
    assert said.called in (calls.read_text() if said.called else ""), line


@pytest.mark.parametrize(
    ("names", "status", "told"),
    [
        (["node-1"] * 15_000, 200, "\n[[ DMESG ]] SUCCESS\nHost  node-1\n"),
        (["node-1"] * 15_001, 400, "15001"),
    ],
    ids=["most names", "too many names"],
)
def test_a_list_of_nodes_comes_from_a_file(node: RecordedNode, names: list[str], status: int, told: str) -> None:
    assert LONG in commands_of_test(__file__)
    (node.folder / "nodes.txt").write_text("host=" + ",\n".join(names) + "\n")
    assert told in node.asks(f"{LONG} localhost:3333/status?check=dmesg", status)
