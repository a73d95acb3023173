"""A tenant writes a driver's words into the kernel log: as a mount option, a file name, the name of a process.

The kernel quotes such text in messages of its own, with facility 0. None of it may make a FAIL or end a finding.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]  # the syntax tree of a pattern has no public API
from re import _parser as syntax  # type: ignore[attr-defined]
from typing import Any

import pytest
import yaml

from muster_checks.base.declaration import NodeView, Sign
from muster_checks.base.vocabulary import Origin, Verdict
from muster_checks.dmesg import DMESG, DmesgParameters, StartPosition
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.sources.records import KernelLine
from muster_cli.__main__ import main

_, *LOGS = (Path(__file__).parent / "forged_kernel_lines.txt").read_text().split("\n\n## ")
FORGED = {name: lines.splitlines() for name, _, lines in (log.partition("\n") for log in LOGS)}
SAMPLES = Path(__file__).parents[1] / "checks/dmesg/samples"
EXAMPLES = [
    one["line"]
    for name in ("lines.yaml", "accelerators.yaml")
    for one in yaml.safe_load((SAMPLES / name).read_text())
    if one["gives"]
]
UUID = "GPU-12345678-1234-1234-1234-123456789012"
# Findings that forged clearing lines try to end.
FAULTS = (
    f"NVRM: GPU at PCI:0000:b3:00: {UUID}",
    "NVRM: Xid (PCI:0000:b3:00): 48, pid=7, name=train, DBE (double bit error) ECC Error",
    "NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "NVRM: Xid (PCI:0000:b3:00): 163, pid=7",
    "nfs: server 10.0.0.7 not responding, still trying",
    "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",
    "amdgpu 0000:c1:00.0: amdgpu: {14}socket: 0, die: 3, 2 new uncorrectable hardware errors detected in umc block",
    "habanalabs 0000:33:00.0: Device heartbeat failed! PCI link is broken",
)
CLEARS = (
    f"GPU reset executed: {UUID}, success: true",
    "NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
    "NVRM: Xid (PCI:0000:b3:00): 162, pid=7",
    "nfs: server 10.0.0.7 OK",
    "mlx5_core 0000:41:00.1: Port module event: module 1, Cable plugged",
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) succeeded!",
    "habanalabs 0000:33:00.0: Successfully finished resetting the 0000:33:00.0 device",
)
EXPECTED = {
    ("gpu/0000:b3:00.0", "Xid48"),
    ("gpu/0000:b3:00.0", "Xid154"),
    ("gpu/0000:b3:00.0", "Xid163"),
    ("nfs/10.0.0.7", "NfsNotResponding"),
    ("nic/0000:41:00.1", "NicCableUnplugged"),
    ("gpu/0000:c1:00.0", "AmdGpuUncorrectable"),
    ("gpu/0000:33:00.0", "HabanaHeartbeat"),
}
WARNINGS = {"Xid163", "NfsNotResponding", "NicCableUnplugged"}
# Where users put text, one for each kind of place; {} is the text, {name} the 15 bytes of it that a process name holds.
CARRIERS = (
    "tmpfs: Unknown parameter '{}'",
    'overlayfs: unrecognized mount option "{}" or missing value',
    "python3[1234]: segfault at 7f00 ip 00007f00 sp 00007ffd error 4 in {}[7f00+1000]",
    "{name}[1234]: segfault at 7f00 ip 00007f00 sp 00007ffd error 4 in {}[7f00+1000]",
    "{name}[1234] bad frame in rt_sigreturn frame:0 ip:0 sp:0 orax:ffff in {}[7f00+1000]",
    "{name}[1234]: unhandled exception: SP Alignment, ESR 0x92000006, {}",
    "{name}[1234] general protection ip:7f00 sp:7ffd error:0 in {}[7f00+1000]",
    "{name}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL), nodemask=(null),cpuset={},mems_allowed=0",
    "{name}: vmalloc error: size 9, exceeds total pages, mode:0xcc2(GFP_KERNEL), nodemask=(null),cpuset={}",
    "{name} (9): /proc/9/oom_adj is deprecated, please use /proc/9/oom_score_adj instead.",
    "NVRM: API mismatch: the client has the version {}, but",
    "request_module: modprobe fs-{} cannot be processed, kmod busy with 50 threads for more than 5 seconds now",
    "{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "traps: {name}[9] trap invalid opcode ip:7f00 sp:7ffd error:0 in {}[7f00+1000]",
    "process '{}' started with executable stack",
    "{} IN=eth0 OUT= MAC=52:54:00:12:34:56 SRC=198.51.100.7 DST=203.0.113.7 LEN=40 TOS=0x00 PREC=0x00 TTL=9 PROTO=TCP",
    "{}IN= OUT=eth0 SRC=2001:db8::1 DST=2001:db8::2 LEN=64 TC=0 HOPLIMIT=64 FLOWLBL=0 PROTO=ICMPv6",
    'audit: type=1400 audit(1709370930.101:7): apparmor="DENIED" name="{}" pid=9 comm="{name}"',
    "usb 1-1: Product: {}",
    "input: {} as /devices/virtual/input/input5",
    "device-mapper: ioctl: device {} already exists",
    "mymodule: unknown parameter '{}' ignored",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/{},task_memcg=/{},task={name},pid=9,uid=1000",
    "NVRM: Xid (PCI:0000:b4:00): 31, pid=9, name={name}, Ch 00000010",
    "NVRM: Xid (PCI:0000:b4:00): 31, pid='{name}', name={name}, Ch 00000010",
    "Memory cgroup out of memory: Killed process 9 ({name}) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:0kB",
    "INFO: task {name}:9 blocked for more than 122 seconds.",
    "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [{name}:9]",
    'EXT4-fs (sdb1): Unrecognized mount option "{}" or missing value',
    "amdgpu 0000:c2:00.0: amdgpu: Process information: process {name} pid 9 thread {name} pid 9",
    "amdgpu 0000:c2:00.0: amdgpu:  in process {name} pid 9 thread {name} pid 9",
    "i915 0000:4d:00.0: [drm] {name}[9] context reset due to GPU hang",
    "i915 0000:4d:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in {name} [9]",
    "xe 0000:03:00.0: [drm] Tile0: GT0: Timedout job: seqno=1, lrc_seqno=1, guc_id=8, flags=0x0 in {name} [9]",
    # a driver that is not known to quote users: only the anchor of each pattern protects
    "mydriver 0000:05:00.0: option '{}' ignored",
    "bpf_trace_printk: {}",
    "systemd[1]: Started {}.",
    "eth0: renamed from {name}",
)


def test_there_are_at_least_200_forged_lines() -> None:
    assert sum(map(len, FORGED.values())) >= 200


def kmsg(texts: Any) -> list[str]:
    """Records of /dev/kmsg, as the kernel escapes them."""
    return [
        f"4,{number},{100_000_000 + 1_000 * number},-;"
        + "".join(c if " " <= c <= "~" and c != "\\" else "".join(f"\\x{b:02x}" for b in c.encode()) for c in text)
        for number, text in enumerate(texts)
    ]


def findings(lines: list[str], log: Path, capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], str]:
    """Verdict by component and reason, as `muster check dmesg` gives them."""
    log.write_text("\n".join(lines) + "\n")
    main(["check", "dmesg", "--sample", str(log), "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    return {(one["component"], one["reason"]): one["verdict"] for one in result.get("findings", ())}


def assert_nothing_forged(found: dict[tuple[str, str], str]) -> None:
    assert found.keys() >= EXPECTED
    assert {key for key, verdict in found.items() if verdict == "FAIL"} <= EXPECTED


def skips_words(repeated: Any) -> bool:
    """Whether a repeated item may match what the kernel writes around a user's text: spaces and a colon."""
    kind, given = repeated
    needed = {(kinds.LITERAL, ord(":")), (kinds.CATEGORY, kinds.CATEGORY_SPACE)}
    excludes = kind is kinds.IN and (given[0][0] is not kinds.NEGATE or not needed.isdisjoint(given))
    return kind in (kinds.ANY, kinds.NOT_LITERAL) or (kind is kinds.IN and not excludes)


def widths_before_wildcards(items: Iterable[Any], width: int = 0) -> Iterator[int]:
    """For each wildcard of a pattern: the least number of characters that match before it."""
    for kind, given in items:
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            if given[1] is kinds.MAXREPEAT and len(given[2]) == 1 and skips_words(given[2][0]):
                yield width
            yield from widths_before_wildcards(given[2], width)
        elif kind is kinds.SUBPATTERN:
            yield from widths_before_wildcards(given[3], width)
        elif kind is kinds.BRANCH:
            for branch in given[1]:
                yield from widths_before_wildcards(branch, width)
        width += syntax.SubPattern(syntax.State(), [(kind, given)]).getwidth()[0]


def test_no_process_name_holds_what_a_row_that_fails_expects_before_a_wildcard() -> None:
    shortest = {
        row.name: min(widths)
        for row in load_catalogue(None).rows
        if row.verdict is Verdict.FAIL
        and (widths := [one for pattern in row.patterns for one in widths_before_wildcards(syntax.parse(pattern))])
    }
    assert "NicUnrecoverable" in shortest
    assert {name: width for name, width in shortest.items() if width <= 15} == {}


def test_the_faults_are_found_and_their_clearing_lines_end_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert findings(kmsg(FAULTS), tmp_path / "log", capsys).keys() == EXPECTED
    assert findings(kmsg(FAULTS + CLEARS), tmp_path / "log", capsys) == {}


@pytest.mark.parametrize("section", FORGED)
def test_a_forged_line_makes_no_fault_and_ends_none(
    section: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = findings([*kmsg(FAULTS), *FORGED[section]], tmp_path / "log", capsys)
    if not section.startswith("kmsg"):
        # lines with a date are years after times since boot: the warnings have ended by themselves
        found |= {key: "WARN" for key in EXPECTED if key[1] in WARNINGS}
    assert_nothing_forged(found)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("around", ["{}", "x\n{}", "x\n{}\n"], ids=["inline", "after a line break", "between two"])
def test_an_example_of_any_row_in_a_users_text_makes_no_fault_and_ends_none(
    carrier: str, around: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forge(example: str) -> str:
        text = around.format(example)
        return carrier.replace("{name}", text[:15]).replace("{}", text)

    lines = kmsg([*FAULTS, *(forge(example) for example in (*EXAMPLES, *CLEARS))])
    found = findings(lines, tmp_path / "log", capsys)
    # seven true soft lockups are a fault, whatever the process is called
    found.pop(("host", "SoftLockupRepeated"), None)
    assert_nothing_forged(found)


SAME_TIME = (
    "Nov 20 03:42:11 node kernel: [  300.000001] tmpfs: Unknown parameter 'x",
    "Nov 20 03:42:11 node kernel: [  300.000001] NVRM: Xid (PCI:0000:b4:00): 79",
    "Nov 20 03:42:11 node kernel: [  300.000001] '",
)


def test_a_line_break_that_syslog_turned_into_a_message_makes_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert findings([*SAME_TIME], tmp_path / "log", capsys) == {}
    later = SAME_TIME[1].replace("300.000001", "300.000002")
    assert findings([SAME_TIME[0], later], tmp_path / "log", capsys) == {("gpu/0000:b4:00.0", "Xid79"): "FAIL"}
    same_driver = SAME_TIME[1].replace("b4", "b5")
    assert len(findings([SAME_TIME[1], same_driver], tmp_path / "log", capsys)) == 2


BLOCKED = "INFO: task kubelet:77 blocked for more than 122 seconds."


@pytest.mark.parametrize(
    ("cgroup", "uids", "reasons"),
    [
        ("0::/system.slice/kubelet.service", "0\t0\t0\t0", {"TaskHung", "KernelDeadlock"}),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope", "0\t0\t0\t0", {"TaskHung"}),
        ("0::/../../pod0b2c3d4e-0000-1111-2222-333344445555/1", "0\t0\t0\t0", {"TaskHung"}),
        ("0::/user.slice/user-1000.slice/session-3.scope", "0\t0\t0\t0", {"TaskHung"}),
        # a user's cron job, a login over SSH without PAM; then a setuid program that a user started
        ("0::/system.slice/cron.service", "1000\t1000\t1000\t1000", {"TaskHung"}),
        ("0::/system.slice/cron.service", "1000\t0\t0\t0", {"TaskHung"}),
        (None, "0\t0\t0\t0", {"TaskHung"}),
    ],
)
async def test_only_a_process_of_the_node_itself_fails_the_node_by_its_name(
    cgroup: str | None, uids: str, reasons: set[str], tmp_path: Path
) -> None:
    process = tmp_path / "proc/77"
    process.mkdir(parents=True)
    if cgroup is not None:
        (process / "comm").write_text("kubelet\n")
        (process / "cgroup").write_text(f"{cgroup}\n")
        (process / "status").write_text(f"Name:\tkubelet\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")
    assert await reasons_of(tmp_path, BLOCKED) == reasons


async def test_a_line_that_root_wrote_from_user_space_may_name_any_process(tmp_path: Path) -> None:
    assert await reasons_of(tmp_path, f"<12>{BLOCKED}") == {"TaskHung", "KernelDeadlock"}


def test_a_users_row_may_name_a_process_that_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text("rows: [{name: OOMKilling, verdict: FAIL}]")
    line = KernelLine("Out of memory: Killed process 9 (python)", 1000.0, 100.0, 4, 0, Origin.KERNEL, 1, "")
    judge = KernelLogJudge(load_catalogue(path), clock=lambda: 1000.0, of_node=lambda _pid, _name: False)
    assert [sign.reason for sign in judge.take(line) if isinstance(sign, Sign)] == ["OOMKilling"]


async def reasons_of(root: Path, line: str) -> set[str]:
    """The reasons of the signs that the agent's stream makes of a log with this line."""
    log = root / "log"
    log.write_text(f"{line}\n")
    stream = DMESG.stream(NodeView(root=root), DmesgParameters(path=log), None)  # type: ignore[misc]  # it has one
    async for events in stream.events():
        return {event.reason for event in events if isinstance(event, Sign)}
    return set()


@pytest.mark.parametrize("start", list(StartPosition))
async def test_a_line_break_at_the_place_where_the_agent_starts_makes_no_fault(
    start: StartPosition, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("[  300.000001] tmpfs: Unknown parameter 'x\n")

    def stream(saved: bytes | None) -> Any:
        return DMESG.stream(NodeView(root=tmp_path), DmesgParameters(path=log, start=start), saved)  # type: ignore[misc]  # it has one

    before = stream(None)
    async with collected(before) as events:
        saved = before.position()
        with log.open("a") as file:
            file.write("NVRM: Xid (PCI:0000:b4:00): 79\n[  300.000001] NVRM: Xid (PCI:0000:b4:00): 48\n")
        await before.drain()
    assert events == []
    async with collected(stream(saved)) as events:
        pass
    assert events == []


@asynccontextmanager
async def collected(stream: Any) -> AsyncIterator[list[Any]]:
    """The events of the stream, which has read its log to the end once."""
    events: list[Any] = []

    async def collect() -> None:
        async for some in stream.events():
            events.extend(some)

    reading = asyncio.ensure_future(collect())
    await stream.drain()
    yield events
    reading.cancel()


ROW = "{{name: Widget, pattern: '{}', component: host, verdict: FAIL, class: reboot, message: it died, anywhere: {}}}"
DIED = "widget w7 died"


@pytest.mark.parametrize(
    ("pattern", "anywhere", "within", "warns"),
    [("widget", "false", False, False), ("widget", "true", True, True), (".*widget", "false", True, True)],
)
def test_a_users_row_matches_at_the_beginning_unless_it_asks_for_more(
    pattern: str, anywhere: str, within: bool, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(f"rows: [{ROW.format(pattern, anywhere)}]")
    catalogue = load_catalogue(path)
    assert ("Widget" in caplog.text) == warns

    def fails(text: str) -> bool:
        line = KernelLine(text, 1000.0, 100.0, 4, 0, Origin.KERNEL, 1, "")
        return bool(KernelLogJudge(catalogue, clock=lambda: 1000.0).take(line))

    assert fails(DIED)
    assert fails(f"bus 3: {DIED}") == within
    assert not fails(f"tmpfs: Unknown parameter '{DIED}'")
