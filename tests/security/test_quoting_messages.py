"""A tenant's text in messages that quote it, in each form in which a log shows them: no FAIL, and no finding ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.security.test_forged_kernel_lines import (
    CLEARS,
    FAULTS,
    assert_nothing_forged,
    collected,
    findings,
    kmsg,
)

from muster_checks.base.declaration import NodeView
from muster_checks.dmesg import DMESG, DmesgParameters, UserLines

MESSAGES = [
    line
    for line in (Path(__file__).parent / "quoting_messages.txt").read_text().splitlines()
    if line and line[0] != "#"
]
XID = "NVRM: Xid (PCI:0000:b4:00): 79"
# One for each way in which a message begins: with a driver, a device, a program, or the kernel's own words.
FORGED = (
    "nv-fabricmanager: detected NVSwitch fatal error 20034 on fid 0",
    "EXT4-fs (sda1): Remounting filesystem read-only",
    "BTRFS info (device sda1): forced readonly",
    "nvme nvme0: Removing after probe failure status: -19",
    "pcieport 0000:00:01.0: AER: device recovery failed",
    "Kernel panic - not syncing: Fatal exception",
)
AROUND = ("{}", "x\n{}", "x\n{}\n", 'x\n{{"MESSAGE": "{}"}}\n', 'x\n"msg": "{}"\n')
FIRST_S = 300


def indented(prefix: str, message: str) -> list[str]:
    """As dmesg and journalctl print a message of several lines."""
    return (prefix + message.replace("\n", "\n" + " " * len(prefix))).split("\n")


def repeated(prefix: str, message: str) -> list[str]:
    """As /proc/kmsg and a console show a message of several lines."""
    return [prefix + line for line in message.split("\n")]


def uptime(number: int) -> str:
    return f"[{FIRST_S + number / 1000:12.6f}] "


def day(number: int) -> str:
    return f"Nov {number // 86400 % 28 + 1:2d} {number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"


FORMS: dict[str, Callable[[int, str], list[str]]] = {
    "kmsg": lambda number, message: [kmsg([message])[0].replace("4,0,", f"4,{number},")],
    "dmesg": lambda number, message: indented(uptime(number), message),
    "dmesg -x": lambda number, message: indented("kern  :err   : " + uptime(number), message),
    "dmesg -T": lambda number, message: indented(f"[Thu {day(number)} 2025] ", message),
    "dmesg --time-format iso": lambda number, message: indented(
        f"2025-11-20T03:{number // 60 % 60:02d}:{number % 60:02d},{number % 1_000_000:06d}+00:00 ", message
    ),
    "console": lambda number, message: repeated(uptime(number), message),
    "console with callers": lambda number, message: repeated(uptime(number)[:-1] + "[ T1234] ", message),
    "syslog": lambda number, message: repeated(f"{day(number)} node kernel: {uptime(number)}", message),
    "journalctl": lambda number, message: indented(f"{day(number)} node kernel: ", message),
    "journalctl -o json": lambda _number, message: [json.dumps({"MESSAGE": message, "_TRANSPORT": "kernel"})],
    "dmesg -J": lambda _number, message: [f'         "msg": {json.dumps(message)}'],
    "container log of dmesg": lambda number, message: [
        "2025-11-20T03:42:11.123456789Z stdout F " + line for line in indented(uptime(number), message)
    ],
    "container log of a console": lambda number, message: [
        f"2025-11-20T03:42:11.{number:09d}Z stdout F {line}" for line in repeated("<3>" + uptime(number), message)
    ],
}


def quote(message: str, text: str) -> str:
    return message.replace("{name}", text[:15]).replace("{}", text)


@pytest.mark.parametrize("form", FORMS)
def test_no_text_that_a_message_quotes_makes_a_fault_or_ends_one(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [*FAULTS]
    for number, message in enumerate(MESSAGES):
        texts = [XID, CLEARS[number % len(CLEARS)], FORGED[number % len(FORGED)]]
        messages += [quote(message, around.format(text)) for around in AROUND for text in texts]
    lines = [line for number, message in enumerate(messages) for line in FORMS[form](number, message)]
    found = findings(lines, tmp_path / "log", capsys)
    found.pop(("host", "SoftLockupRepeated"), None)  # many true soft lockups
    assert_nothing_forged(found)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        *FORMS[form](0, "tmpfs: Unknown parameter 'x\ny'"),
        *FORMS[form](1, XID),
        *FORMS[form](2, f"GPU reset executed: {'x' * 8}, success: false"),
    ]
    found = findings(lines, tmp_path / "log", capsys)
    assert {reason for _, reason in found} == {"Xid79", "GpuResetFailed"}


INTERFACE_MESSAGES = (
    "{name}: option mode: invalid value ({text})",
    "{name} (uninitialized): option mode: invalid value ({text})",
    "{name} (unregistering): option primary: invalid value ({text})",
    '{name}: Mode "{text}" not found',
    '{name}: Failed to change to mode "{text}"',
)


@pytest.mark.parametrize("name", ["NVRM", "nvidia-nvswitch", "mce", "watchdog", "EXT4-fs", "nvme"])
def test_a_network_interface_named_like_a_driver_makes_no_fault(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner of a user namespace chooses the name of a bond, and writes any text into its options."""
    told = {
        "NVRM": f"{XID}, GPU has fallen off the bus.",
        "nvidia-nvswitch": "nvidia-nvswitch: SXid (PCI:0000:c3:00.0): 12020, Fatal, Link 33 egress sequence ID error",
        "mce": "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: be00000000800400",
        "watchdog": "watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "EXT4-fs": "EXT4-fs (sda1): Remounting filesystem read-only",
        "nvme": "nvme nvme0: Removing after probe failure status: -19",
    }[name]
    for quoting in INTERFACE_MESSAGES:
        for form in ("syslog", "console"):
            lines = FORMS[form](1, quoting.format(name=name, text=f"x\n{told}"))
            assert findings(lines, tmp_path / "log", capsys) == {}, quoting
    lines = FORMS["syslog"](1, INTERFACE_MESSAGES[0].format(name=name, text="x")) + FORMS["syslog"](2, told)
    assert set(findings(lines, tmp_path / "log", capsys).values()) == {"FAIL"}


FALLEN = (f"{XID}, GPU has fallen off the bus.", "Xid79")


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("NVRM: rpcSendMessage failed with status 0x00000011 for fn 78!", FALLEN),
        ("NVRM: _threadNodeCheckTimeout: API_GPU_ATTACHED_SANITY_CHECK failed!", FALLEN),
        ("NVRM: **** GSP Timeout ****", FALLEN),
        (
            "amdgpu: Resetting wave fronts (cpsch) on dev 00000000",
            (
                "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
                "AmdGpuQueueHung",
            ),
        ),
        (
            "ata1.00: exception Emask 0x10 SAct 0x400000 SErr 0x280100 action 0x6 frozen",
            ("ata1.00: failed command: READ FPDMA QUEUED", "AtaCommandFailed"),
        ),
        (
            "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
            ("blk_update_request: critical medium error, dev sda, sector 12345", "BlockIoError"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
@pytest.mark.parametrize("form", ["console", "syslog"])
def test_a_message_counts_that_its_driver_prints_in_the_microsecond_of_the_one_before(
    form: str, first: str, told: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message, reason = told
    lines = [*FORMS[form](1, first), *FORMS[form](1, message)]
    assert {reason for _, reason in findings(lines, tmp_path / "log", capsys)} == {reason}


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "3"}),
        json.dumps({"MESSAGE": XID, "_TRANSPORT": "syslog", "SYSLOG_FACILITY": "0"}),
        json.dumps({"log": f"{XID}\n", "stream": "stdout"}),
        json.dumps({"log": f"<3>{XID}\n", "stream": "stdout"}),
        f"2025-11-20T03:42:11.123456789Z stdout F <3>{XID}",
        f"2025-11-20T03:42:11.123456789Z stdout F kern  :err   : {XID}",
        f"2025-11-20T03:42:11.123456789Z stdout F {XID}",
        # what the program writes looks like a log of the kernel
        f"2025-11-20T03:42:11.123456789Z stdout F 2025-11-20T03:42:11Z kern  :err   : {XID}",
        json.dumps({"log": f"2025-11-20T03:42:11Z kern  :err   : {XID}\n", "stream": "stdout"}),
        json.dumps({"MESSAGE": f"Nov 20 03:42:11 kern  :err   : {XID}", "_TRANSPORT": "syslog"}),
    ],
)
async def test_a_line_that_a_program_wrote_can_be_refused_in_each_form(line: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n")
    for user_lines, reasons in ((UserLines.COUNT, ["Xid79"]), (UserLines.REFUSE, [])):
        parameters = DmesgParameters(path=log, user_lines=user_lines)
        stream = DMESG.stream(NodeView(root=tmp_path), parameters, None)  # type: ignore[misc]  # it has one
        async with collected(stream) as events:
            pass
        assert [event.reason for event in events] == reasons
