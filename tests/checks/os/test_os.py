"""Kernel limits, the kernel's own state, modules, FUSE and NFS."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Verdict
from muster_checks.os import OS, OsParameters
from muster_checks.os.judge import KernelLimit, KernelState, judge
from muster_checks.os.parse import parse_mountstats
from muster_checks.os.probe import read_state
from muster_checks.testing.recorded import lay_out, node

HEALTHY = {
    "/proc/sys/fs/file-nr": "1115\t0\t2466193",
    "/proc/sys/net/netfilter/nf_conntrack_count": 12,
    "/proc/sys/net/netfilter/nf_conntrack_max": 1000,
    "/proc/sys/kernel/pid_max": 32768,
    "/proc/sys/kernel/threads-max": 192731,
    "/proc/sys/kernel/tainted": 0,
    "/proc/loadavg": "1.68 1.05 0.87 3/151 23990",
    "/proc/buddyinfo": "Node 0, zone DMA32 2 2 4 2 5 4 3 3 4 2 752\nNode 0, zone Normal 2 1 1 5 3 2 7 3 2 173 133",
    "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nnvidia 56717312 1 nvidia_peermem, Live 0x0",
}
# the form of fs/nfs (statvers 1.1), shortened; a local mount before and behind it
MOUNTSTATS = """device /dev/vda1 mounted on / with fstype ext4
device nas:/data mounted on /data with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,timeo=600
	age:	3600
	xprt:	tcp 0 1 1 0 11 100 100 0 100 0 2 0 0
	per-op statistics
	NULL: 1 1 0 44 24 0 0 0 0
	READ: 100 104 {timeouts} 22000 100 0 5 6 0
	WRITE: 7 7 1 22000 100 0 5 6 0

device tmpfs mounted on /run with fstype tmpfs
"""


async def test_this_machine_is_at_no_limit():
    result = await run_probe(OS, NodeView(), OsParameters())
    assert result.verdict in (Verdict.PASS, Verdict.WARN)  # somebody's oops may be in this machine's past
    assert {"limit/files", "limit/threads"} <= {f.component for f in result.findings if f.verdict is Verdict.PASS}


async def test_a_healthy_node_passes_with_what_is_in_use(tmp_path: Path):
    result = await run_probe(OS, node(lay_out(tmp_path, HEALTHY)), OsParameters())
    assert result.verdict is Verdict.PASS
    used = {f.component: f.measurements[0].value for f in result.findings}
    assert used == {
        "limit/files": 1115,
        "limit/conntrack": 12,
        "limit/threads": 151,
        "kernel": 0,
        "memory/blocks": 2 + 2 * 752 + 173 + 2 * 133,
    }


def test_memory_in_small_pieces_warns_where_somebody_needs_large_ones():
    state = KernelState(tainted=0, free_blocks=9)
    assert {f.verdict for f in judge(state, {}, OsParameters())} == {Verdict.PASS}
    finding = judge(state, {}, OsParameters(min_free_2mib_blocks=10))[-1]
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "Fragmented")


@pytest.mark.parametrize(
    ("file", "text", "component"),
    [
        ("/proc/sys/net/netfilter/nf_conntrack_count", 901, "limit/conntrack"),
        ("/proc/sys/fs/file-nr", "2466190 0 2466193", "limit/files"),
        ("/proc/loadavg", "1 1 1 3/32000 5", "limit/threads"),
    ],
)
async def test_a_limit_nearly_reached_warns_and_names_itself(tmp_path: Path, file: str, text: object, component: str):
    result = await run_probe(OS, node(lay_out(tmp_path, HEALTHY | {file: text})), OsParameters())
    assert [f.component for f in result.findings if f.verdict is Verdict.WARN] == [component]
    assert result.verdict is Verdict.WARN


def test_the_share_is_the_parameter():
    state = KernelState(limits=[KernelLimit("files", 51, 100)])
    assert judge(state, {}, OsParameters(max_share=0.5))[0].verdict is Verdict.WARN
    assert judge(state, {}, OsParameters(max_share=0.51))[0].verdict is Verdict.PASS


@pytest.mark.parametrize(("bits", "told"), [(1 << 4, "machine check"), (1 << 7, "oops"), (1 << 14, "soft lockup")])
def test_a_fault_since_boot_is_told(bits: int, told: str):
    (finding,) = judge(KernelState(tainted=bits | 1), {}, OsParameters())
    assert finding.verdict is Verdict.WARN
    assert told in finding.message


def test_a_proprietary_or_unsigned_module_is_no_fault():
    (finding,) = judge(KernelState(tainted=1 | 1 << 12 | 1 << 13), {}, OsParameters())
    assert finding.verdict is Verdict.PASS


async def test_modules_are_asked_for_by_either_spelling(tmp_path: Path):
    parameters = OsParameters(modules="nvidia-peermem, gdrdrv,")
    result = await run_probe(OS, node(lay_out(tmp_path, HEALTHY)), parameters)
    modules = {f.component: f.verdict for f in result.findings if f.component.startswith("module/")}
    assert modules == {"module/nvidia_peermem": Verdict.PASS, "module/gdrdrv": Verdict.WARN}


def test_modules_that_cannot_be_listed_are_unknown():
    findings = judge(KernelState(tainted=0), {}, OsParameters(modules="gdrdrv"))
    assert findings[-1].verdict is Verdict.UNKNOWN


async def test_a_congested_fuse_connection_warns(tmp_path: Path):
    fuse = "/sys/fs/fuse/connections"
    files = {f"{fuse}/44/waiting": 9, f"{fuse}/44/congestion_threshold": 9, f"{fuse}/45/waiting": 0}
    result = await run_probe(OS, node(lay_out(tmp_path, HEALTHY | files)), OsParameters())
    assert [f.component for f in result.findings if f.verdict is Verdict.WARN] == ["fuse/44"]


async def test_nfs_time_outs_count_when_they_rise(tmp_path: Path):
    now = [1000.0]
    view = node(lay_out(tmp_path, HEALTHY), clock=lambda: now[0])
    verdicts = []
    for timeouts in (5, 5, 6, 6):
        lay_out(tmp_path, {"/proc/1/mountstats": MOUNTSTATS.format(timeouts=timeouts)})
        result = await run_probe(OS, view, OsParameters(window_s=60.0))
        verdicts.append(next(f.verdict for f in result.findings if f.component == "mount/data"))
        now[0] += 61.0 if timeouts == 6 else 30.0
    assert verdicts == [Verdict.PASS, Verdict.PASS, Verdict.WARN, Verdict.PASS]


def test_only_nfs_mounts_are_read():
    assert parse_mountstats(MOUNTSTATS.format(timeouts=4)) == {"/data": 5}


async def test_a_node_whose_proc_cannot_be_read_is_unknown(tmp_path: Path):
    assert (await run_probe(OS, node(tmp_path), OsParameters())).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("text", TEXTS)
def test_garbage_in_any_file_is_no_finding_worse_than_a_warning(tmp_path: Path, text: bytes):
    for name in (*HEALTHY, "/proc/1/mountstats"):
        lay_out(tmp_path, HEALTHY)
        (tmp_path / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name.lstrip("/")).write_bytes(text)
        findings = judge(read_state(node(tmp_path)), {}, OsParameters())
        assert Verdict.FAIL not in {f.verdict for f in findings}


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="device nfs:/0123456789abc\n\t -per-opstai", max_size=300))
def test_any_mountstats_are_read(text: str):
    assert all(value >= 0 for value in parse_mountstats(text).values())
