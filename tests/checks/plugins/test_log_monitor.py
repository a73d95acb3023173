"""Log monitors over other logs than the kernel's: files with times of their own, and the journal."""

import asyncio
import errno
import json
import os
import time
from pathlib import Path

import pytest
from tests.checks.bad_input import TEXTS
from tests.wording.facts import missing_facts

from muster_checks.base.declaration import NodeView, Sign
from muster_checks.base.npd_json import FileRefused
from muster_checks.dmesg.catalogue.npd_rules import read_log_monitor
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline
from muster_checks.plugins.filelog import FileLines
from muster_checks.plugins.log_monitor import log_check

BOOTED = 1_772_600_000.0  # 2026-03-04 04:53:20 UTC
CLOCKS = KernelClocks(realtime=lambda: BOOTED + 1800, monotonic=lambda: 1800.0)


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def node(tmp_path) -> NodeView:
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("11111111-1111-1111-1111-111111111111\n")
    (tmp_path / "var/log").mkdir(parents=True)
    return NodeView(tmp_path)


@pytest.fixture
def sample(samples):
    return lambda file, **changes: read_log_monitor({**json.loads((samples / "npd" / file).read_text()), **changes})


async def read_out(stream) -> list[tuple[str, str, str]]:
    """(reason, verdict, message) of all that the stream says until its source is at its end."""
    signs: list[Sign] = []

    async def take() -> None:
        async for batch in stream.events():
            signs.extend(event for event in batch if isinstance(event, Sign))

    reader = asyncio.create_task(take())
    async with asyncio.timeout(20):
        await stream.drain()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    return [(sign.reason, str(sign.verdict), sign.message) for sign in signs]


def opened(check, node, saved=None):
    return check.stream(node, check.parameters(), saved, clocks=CLOCKS)


UNPACK = 'time="{time}" level=error msg="failed to extract layer sha256:77ab: write /x: no space left on device"\n'
NOT_UNPACKED = ("LayerNotUnpacked", "WARN")


async def test_a_file_is_read_by_its_own_expressions_and_nothing_older_than_the_boot(node, sample):
    log = node.path("/var/log/containerd.log")
    log.write_text(
        UNPACK.format(time="2026-03-04T04:50:00.1+00:00")  # before the boot
        + 'time="2026-03-04T05:00:00+00:00" level=info msg="nothing"\n'
        + "no line of containerd's\n"
        + UNPACK.format(time="yesterday")
        + UNPACK.format(time="2026-03-04T06:00:00.1+01:00")
    )
    check = log_check("containerd", sample("containerd-file.json"), "containerd-file.json")
    stream = opened(check, node)
    signs = await read_out(stream)
    assert [sign[:2] for sign in signs] == [NOT_UNPACKED]
    assert "sha256:77ab" in signs[0][2]
    assert dict(stream.counts())["malformed"] == 1


async def test_a_restart_goes_on_where_it_stopped(node, sample):
    log = node.path("/var/log/containerd.log")
    log.write_text(UNPACK.format(time="2026-03-04T05:00:00+00:00"))
    check = log_check("containerd", sample("containerd-file.json"), "x.json")
    stream = opened(check, node)
    assert len(await read_out(stream)) == 1
    with log.open("a") as file:
        file.write('time="2026-03-04T05:00:30+00:00" msg="other"\n')
    again = opened(check, node, stream.position())
    assert await read_out(again) == []
    with log.open("a") as file:
        file.write(UNPACK.format(time="2026-03-04T05:01:00+00:00"))
    assert [sign[:2] for sign in await read_out(opened(check, node, again.position()))] == [NOT_UNPACKED]
    elsewhere = log_check("containerd", sample("containerd-file.json", logPath="/var/log/other"), "x.json")
    log.rename(node.path("/var/log/other"))
    assert len(await read_out(opened(elsewhere, node, again.position()))) == 2, "a place of another file means nothing"


async def test_after_a_reboot_the_file_is_read_on_and_what_was_known_is_over(node, sample):
    log = node.path("/var/log/containerd.log")
    log.write_text(UNPACK.format(time="2026-03-04T05:00:00+00:00"))
    check = log_check("containerd", sample("containerd-file.json"), "x.json")
    stream = opened(check, node)
    await read_out(stream)
    node.path("/proc/sys/kernel/random/boot_id").write_text("22222222-2222-2222-2222-222222222222\n")
    with log.open("a") as file:
        file.write(UNPACK.format(time="2026-03-04T05:01:00+00:00"))
    assert [sign[:2] for sign in await read_out(opened(check, node, stream.position()))] == [NOT_UNPACKED]


async def test_a_file_that_is_not_there_yet_is_unreadable_until_it_is(node, sample):
    check = log_check("containerd", sample("containerd-file.json"), "x.json")
    stream = opened(check, node)
    assert await read_out(stream) == []
    assert "/var/log/containerd.log" in stream.health()


LINE = "task containerd:77 blocked for more than 120 seconds."


async def test_the_kernel_log_of_a_file_gives_only_these_rules(node, sample):
    log = node.path("/var/log/kern.log")
    log.write_text(
        "Mar  4 04:59:00 n1 kernel: [12.3] NVRM: Xid (PCI:0000:b3:00): 79, pid=1, GPU has fallen off the bus.\n"
        "Mar  4 05:00:00 n1 kernel: [99.1] task containerd:77 blocked for more than 120 seconds.\n"
    )
    check = log_check("kern", sample("kernel-file.json"), "x.json")
    assert await read_out(opened(check, node)) == [
        ("TaskBlocked", "WARN", LINE),
        ("RuntimeBlocked", "FAIL", f"KernelStuck: {LINE}"),
    ]


async def test_lines_of_the_skip_list_are_passed_over(node, sample):
    log = node.path("/var/log/messages")
    line = "Mar  4 05:00:00 n1 smartd[1]:{} /dev/sda, 123 Currently unreadable (pending) sectors\n"
    log.write_text(line.format(" audit:") + line.format(""))
    # the message of the file leaves the number out that its rule wants, so there it never fires
    everything = {"timestamp": "^.{15}", "message": ".*", "timestampFormat": "Jan _2 15:04:05"}
    check = log_check("disk", sample("disk-file.json", pluginConfig=everything), "x.json")
    signs = await read_out(opened(check, node))
    assert [sign[:2] for sign in signs] == [("SectorsUnreadable", "FAIL")]
    assert "audit" not in signs[0][2]
    check = log_check("disk", sample("disk-file.json"), "x.json")
    assert await read_out(opened(check, node)) == []


def export(message: str, cursor: str, identifier: str = "containerd") -> str:
    fields = {
        "__CURSOR": cursor,
        "__REALTIME_TIMESTAMP": str(int((BOOTED + 60) * 1e6)),
        "PRIORITY": "3",
        "SYSLOG_FACILITY": "3",
        "SYSLOG_IDENTIFIER": identifier,
        "MESSAGE": message,
    }
    return "".join(f"{name}={value}\n" for name, value in fields.items()) + "\n"


@pytest.fixture
def journalctl(tmp_path, monkeypatch) -> Path:
    """A journalctl on $PATH that notes how it was called and prints ``entries``; a follower then waits."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "journalctl"
    script.write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/calls\n'
        f'case "$*" in *-f*) exec sleep 60;; *after-cursor*) exit 0;; esac\nexec cat {folder}/entries\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


async def test_the_journal_is_asked_for_one_identifier_of_this_boot(node, sample, journalctl):
    message = "readlink /var/lib/containerd/snapshots/7: invalid argument"
    (journalctl / "entries").write_text(export(message, "c1") + export("all is well", "c2"))
    check = log_check("containerd", sample("containerd.json"), "containerd.json")
    stream = opened(check, node)
    assert await read_out(stream) == [("SnapshotLinkLost", "FAIL", f"SnapshotsBroken: {message}")]
    first = (journalctl / "calls").read_text().splitlines()[0]
    assert first == f"-b --identifier=containerd -o export --all --quiet --no-pager --root={node.root}"


async def test_a_journal_in_a_folder_of_its_own_is_read_there(node, sample, journalctl):
    (journalctl / "entries").write_text("")
    check = log_check("containerd", sample("containerd.json", logPath="/mnt/journal"), "containerd.json")
    await read_out(opened(check, node))
    first = (journalctl / "calls").read_text().splitlines()[0]
    assert first == f"-b --identifier=containerd --directory={node.root}/mnt/journal -o export --all --quiet --no-pager"


async def test_without_journalctl_the_check_says_so(node, sample, monkeypatch):
    monkeypatch.setenv("PATH", "")
    check = log_check("containerd", sample("containerd.json"), "containerd.json")
    stream = opened(check, node)
    assert await read_out(stream) == []
    assert missing_facts(stream.health(), "journalctl", os.strerror(errno.ENOENT)) == []


EXPRESSIONS = {"timestamp": "^.{15}", "message": "(.*)", "timestampFormat": "Jan _2 15:04:05"}
BAD = [
    ({"logPath": "C:\\log"}, 'logPath: "C:\\log": '),
    ({"logPath": "log"}, 'logPath: "log": '),
    ({"logPath": ""}, 'logPath: "": '),
    ({"pluginConfig": {}}, "pluginConfig.timestamp: "),
    ({"pluginConfig": {**EXPRESSIONS, "message": "("}}, 'pluginConfig.message: "(": missing ): ('),
    (
        {"pluginConfig": {**EXPRESSIONS, "timestampFormat": "%b %d"}},
        'timestampFormat: "%b %d": ',
    ),
    ({"plugin": "journald"}, "pluginConfig.source: "),
]


@pytest.mark.parametrize(("changes", "told"), BAD, ids=range(len(BAD)))
def test_a_bad_file_names_key_value_and_what_is_allowed(changes, told, sample):
    with pytest.raises(FileRefused) as caught:
        log_check("x", sample("containerd-file.json", **changes), "x.json")
    assert told in str(caught.value)


@pytest.mark.parametrize("text", TEXTS)
def test_any_line_is_a_message_or_none(text, sample):
    lines = FileLines(sample("kernel-file.json"), Timeline(CLOCKS), lambda _text: True)
    assert lines.take(text[:100_000]) is None
    assert lines.take(b"Mar  4 05:00:00 n1 kernel: [1] " + text.replace(b"\n", b" ")[:1000]) is not None
    lines.forget()


def test_a_line_from_before_the_boot_is_none(sample):
    lines = FileLines(sample("kernel-file.json"), Timeline(CLOCKS), lambda _text: True)
    assert lines.take(b"Mar  4 04:53:19 n1 kernel: [1] x") is None
    assert lines.take(b"Mar  4 04:53:20 n1 kernel: [1] x") is not None


def test_a_group_that_took_no_part_is_an_empty_message(sample):
    monitor = sample("kernel-file.json", pluginConfig={**EXPRESSIONS, "message": "n1 (x)?"})
    line = FileLines(monitor, Timeline(CLOCKS), lambda _text: True).take(b"Mar  4 05:00:00 n1 y")
    assert line is not None
    assert (line.text, line.uptime_s) == ("", 400.0)


def test_the_check_is_a_stream_and_says_what_it_reads(sample):
    check = log_check("x", sample("systemd.json"), "systemd.json")
    assert check.stream is not None
    assert missing_facts(check.reads, "systemd", "journalctl") == []
