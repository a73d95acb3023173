"""The YAML files: each row fires for the lines it is for, on the right component, and not for their neighbours."""

from pathlib import Path

import pytest
import yaml

from muster_checks.base.declaration import Sign
from muster_checks.dmesg.windows import Windows

SAMPLES = Path(__file__).parents[1] / "samples"
LINES = [
    (one["line"], one["gives"])
    for name in ("lines.yaml", "accelerators.yaml")
    for one in yaml.safe_load((SAMPLES / name).read_text())
]


@pytest.mark.parametrize(("text", "expected"), LINES, ids=[text[:50] for text, _ in LINES])
def test_a_kernel_line_is_judged(text, expected, bench):
    assert [[e.component, e.reason, str(e.verdict)] for e in bench.feed(text)] == expected


@pytest.mark.parametrize("text", [text for text, expected in LINES if expected])
def test_what_is_judged_is_of_interest(text, bench):
    assert bench.judge.interesting(text.encode())
    assert bench.judge.interesting(b"a\\x0a" + text.encode().replace(b" ", b"\\x20"))  # as /dev/kmsg may escape it


def test_every_shipped_row_has_a_line_that_fires_it(catalogue, bench, samples):
    texts = [text for text, _ in LINES] * 30
    texts += [path.read_text() for path in (samples / "dumps").iterdir()]
    texts += ["GPU reset executed: GPU-1, success: false"]
    texts += ["NVRM: GPU at x", "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer"] * 30
    texts += ["watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [x:1]", " mlx5e_napi_poll+0x12/0x34 [mlx5_core]"]
    texts += ["INFO: task x:1 blocked for more than 122 seconds.", " nfs_wb_all+0x22/0x120 [nfs]"]
    fired = {
        event.reason
        for number, text in enumerate(texts)
        for event in bench.feed(text, number / 100)
        if isinstance(event, Sign)
    }
    assert {row.name for row in catalogue.rows} - fired == set()


# ---- what one line alone does not say ---------------------------------------------------------------------------

THREE = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
OFF_BUS = [("gpu/0000:b3:00.0", "GpuFallenOffTheBus", "FAIL", "reboot")]


def test_a_gpu_off_the_bus_is_named_by_an_earlier_record(bench, summarize):
    assert [summarize(bench.feed(text, number / 1000)) for number, text in enumerate(THREE)] == [[], [], OFF_BUS]


def test_a_gpu_off_the_bus_is_named_across_a_restart(bench, summarize):
    bench.feed(THREE[0])
    assert bench.restart() == ""
    assert summarize(bench.feed(THREE[2])) == OFF_BUS


def test_a_name_from_long_ago_is_not_used(bench, summarize):
    bench.feed(THREE[0])
    assert summarize(bench.feed(THREE[2], 6)) == [("host", "GpuFallenOffTheBus", "FAIL", "reboot")]


def test_off_the_bus_says_nothing_new_while_xid_79_is_open_for_that_gpu(bench, summarize):
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 79, pid=1, GPU has fallen off the bus.")
    again = bench.feed("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", 1)
    assert again == []
    assert bench.judge.counters.covered == 1
    other = summarize(bench.feed("NVRM: GPU 0000:b4:00.0: GPU has fallen off the bus.", 1))
    assert other == [("gpu/0000:b4:00.0", "GpuFallenOffTheBus", "FAIL", "reboot")]


LOCKUP = "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [ksoftirqd/0:9]"


@pytest.mark.parametrize(
    "frame",
    [
        " mlx5e_napi_poll+0x12/0x34 [mlx5_core]",
        "RIP: 0010:mlx5e_poll_ico_cq+0x1/0x2",
        " [<ffff12>] mlx5e_napi_poll+0x1",
    ],
)
def test_a_soft_lockup_in_the_receive_path_fails(frame, bench, summarize):
    bench.feed(LOCKUP)
    assert summarize(bench.feed(frame, 0.1)) == [("host", "NicReceiveLockup", "FAIL", "reboot")]


@pytest.mark.parametrize("after_s", [-1, 6])
def test_the_frame_alone_or_later_says_nothing(after_s, bench):
    if after_s > 0:
        bench.feed(LOCKUP)
    assert bench.feed(" mlx5e_napi_poll+0x12/0x34 [mlx5_core]", max(after_s, 0)) == []


def test_a_frame_the_unwinder_only_guesses_says_nothing(bench):
    bench.feed(LOCKUP)
    assert bench.feed(" ? mlx5e_napi_poll+0x12/0x34 [mlx5_core]", 0.1) == []


def test_a_lockup_and_its_frame_in_one_record_fail(bench):
    reasons = [event.reason for event in bench.feed(LOCKUP + "\n mlx5e_napi_poll+0x12/0x34 [mlx5_core]")]
    assert reasons == ["SoftLockup", "NicReceiveLockup"]


def test_soft_lockups_that_go_on_fail(bench):
    reasons = [[e.reason for e in bench.feed(LOCKUP, 28.0 * n) if str(e.verdict) == "FAIL"] for n in range(6)]
    assert reasons == [[], [], [], [], ["SoftLockupRepeated"], ["SoftLockupRepeated"]]


BLOCKED = "INFO: task python3:77 blocked for more than 122 seconds."


@pytest.mark.parametrize(
    "frame",
    [
        " nfs_lock_and_join_requests+0x181/0x240 [nfs]",
        " nfs_wb_all+0x22/0x120 [nfs]",
        " [<ffffffffc131c500>] nfs_wb_all+0x20/0x110 [nfs]",
        " nfs_page_async_flush+0x1b/0x210 [nfs]",
    ],
)
def test_a_task_that_hangs_in_the_write_back_of_nfs_is_reported(frame, bench, summarize):
    """Frames of hung tasks as logs on the linux-nfs mailing list show them."""
    assert bench.feed(frame) == []
    bench.feed(BLOCKED)
    assert summarize(bench.feed(frame, 0.1)) == [("host", "NfsWritebackHung", "WARN", "contact")]
    assert bench.feed(" ?" + frame, 0.2) == []


MCE = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090"


def test_a_corrected_machine_check_is_reported_with_its_rate(bench, summarize):
    seen = [bench.feed(MCE, 3600.0 * number) for number in range(11)]
    assert (
        summarize([event for events in seen[:9] for event in events]) == [("host", "MachineCheckSeen", "WARN", "")] * 9
    )
    assert [events[0].message.split()[0] for events in seen[:9]] == [str(number) for number in range(1, 10)]
    assert ("host", "MachineCheckCorrected", "WARN", "contact") in summarize(seen[9])
    assert {sign.reason for sign in seen[10]} == {"MachineCheckCorrected"}


def test_the_rate_of_machine_checks_is_that_of_the_last_day(bench):
    bench.feed(MCE)
    (sign,) = (event for event in bench.feed(MCE, 90_000.0) if isinstance(event, Sign))
    assert sign.message.split()[0] == "1"


def test_a_port_s_own_finding_is_not_repeated_for_the_gpu_that_has_one(bench):
    line = "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    bench.feed("NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    assert bench.feed(line, 1) == []


CORRECTED = "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)"


def test_corrected_errors_count_within_their_window_for_each_device(bench, summarize):
    for number in range(29):
        assert bench.feed(CORRECTED, number) == []
        assert bench.feed(CORRECTED.replace("3b", "3c"), number) == []
    (sign,) = bench.feed(CORRECTED, 29)
    assert summarize([sign]) == [("gpu/0000:3b:00.0", "PcieCorrected", "WARN", "contact")]
    assert sign.count == 30


def test_a_count_of_absurdly_many_digits_is_many(bench, summarize):
    label = "on A (channel:0)"
    (sign,) = bench.feed("EDAC MC0: " + "9" * 6000 + " CE memory read error " + label)
    assert summarize([sign]) == [("dimm/A", "MemoryCorrected", "WARN", "contact")]


def test_corrected_errors_spread_over_a_day_say_nothing(bench):
    assert [bench.feed(CORRECTED, 130.0 * number) for number in range(100)] == [[]] * 100


def test_a_window_goes_on_after_a_restart(bench):
    for number in range(29):
        bench.feed(CORRECTED, number)
        assert bench.restart() == ""
    assert len(bench.feed(CORRECTED, 29)) == 1


def test_times_from_before_a_clock_was_set_back_count_for_nothing():
    windows = Windows()
    assert not windows.add("R", "host", 90_000.0, count=2, window_s=60.0)
    assert not windows.add("R", "host", 10.0, count=2, window_s=60.0)
    assert windows.add("R", "host", 20.0, count=2, window_s=60.0)


def test_a_component_s_name_is_bounded_and_plain(bench):
    (sign,) = bench.feed("nfs: server " + "s\x1b\u202e" * 2000 + " not responding")
    assert len(sign.component) < 128
    assert sign.component.isprintable()


def test_the_number_of_windows_is_bounded(bench):
    for number in range(3000):
        bench.feed(CORRECTED.replace("3b:00.0", f"{number // 256:02x}:{number % 256 // 8:02x}.{number % 8}"))
    assert len(bench.judge.state().windows) == 1024


def test_the_kernel_s_own_word_ends_a_finding(bench, summarize):
    bench.feed("nfs: server a not responding, still trying")
    bench.feed("nfs: server b not responding, still trying")
    assert summarize(bench.feed("nfs: server a OK", 3)) == [("nfs/a", "driver", ("NfsNotResponding",), ())]
    assert [found.component for found in bench.judge.state().open] == ["nfs/b"]
