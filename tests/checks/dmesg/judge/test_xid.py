"""Xid lines: every printed form, the codes that need decoding, and a GPU's UUID and reset."""

import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Origin, Verdict

GPU = "gpu/0000:b3:00.0"
UUID = "GPU-12345678-1234-1234-1234-123456789012"
MAP = f"NVRM: GPU at PCI:0000:b3:00: {UUID}"


def xid(code, rest=""):
    return f"NVRM: Xid (PCI:0000:b3:00): {code}" + (f", {rest}" if rest else "")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:b3:00.0): 79, pid='<unknown>', name=<unknown>, Ch 00000001",
        "NVRM: Xid (0000:b3:00): 79, Channel 00000001",
        "NVRM: Xid (PCI:0000:b3:00): 79",
        "NVRM: Xid (PCI:0000:b3:00.0): 79",
        "NVRM: Xid (PCI:0000:B3:00): 79, pid=1",
        "NVRM: Xid (PCI:0000:b3:00 GPU-I:05): 79, pid=1",
        "[ 1843.308145] NVRM: Xid (PCI:0000:b3:00): 79, pid=1",
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: Xid (PCI:0000:b3:00): 79\nlast line",
    ],
)
def test_every_printed_form_of_an_xid_is_read(text, bench, summarize):
    assert summarize(bench.feed(text)) == [(GPU, "Xid79", "FAIL", "reboot")]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): , pid=1",
        "NVRM: Xid (PCI:0000:66): 79, pid=1",
        "NVRM: Xid (PCI:0000:66:zz): 79, pid=1",
        "NVRM: Xid (PCI:0000:66:00: 79, pid=1",
        "NVRM: Xid (PCI:0000:66:00): 123456789, pid=1",
        "NVRM: Xid (PCI:0000:66:00): 79x",
    ],
)
def test_a_malformed_xid_gives_nothing(text, bench):
    assert bench.feed(text) == []


def test_a_sign_carries_the_whole_line_its_time_and_its_writer(bench):
    (sign,) = bench.feed(xid(79, "pid=1"), 23.5, user=True)
    assert sign.line == f"[{123.5:12.6f}] NVRM: Xid (PCI:0000:b3:00): 79, pid=1"
    assert sign.origin is Origin.USER
    assert sign.at == bench.feed(xid(48), 23.5)[0].at
    assert missing_facts(sign.message, "79", GPU, "reboot") == []


def test_two_xids_of_one_record_are_two_signs(bench, summarize):
    assert summarize(bench.feed(xid(13) + "\n" + xid(48))) == [
        (GPU, "Xid13", "WARN", "restart-app"),
        (GPU, "Xid48", "FAIL", "reset"),
    ]


@pytest.mark.parametrize("code", [106, 107])
def test_a_test_message_is_no_sign(code, bench):
    assert bench.feed(xid(code)) == []


def test_162_ends_163(bench, summarize):
    assert summarize(bench.feed(xid(163))) == [(GPU, "Xid163", "WARN", "contact")]
    assert summarize(bench.feed(xid(162))) == [(GPU, "driver", ("Xid163",), ())]


# ---- 154 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "verdict", "asks"),
    [
        ("GPU Reset Required", "FAIL", "reset"),
        ("Drain and Reset", "FAIL", "reset"),
        ("Node Reboot Required", "FAIL", "reboot"),
        ("Drain P2P", "WARN", "restart-app"),
        ("Dance", "WARN", ""),
    ],
)
def test_154_is_judged_by_the_action_it_names(action, verdict, asks, bench, summarize):
    text = xid(154, f"GPU recovery action changed from 0x0 (None) to 0x1 ({action})")
    assert summarize(bench.feed(text)) == [(GPU, "Xid154", verdict, asks)]


def test_154_without_a_readable_action_warns(bench, summarize):
    assert summarize(bench.feed(xid(154, "GPU recovery"))) == [(GPU, "Xid154", "WARN", "")]


def test_154_back_to_none_ends_what_154_said_and_nothing_else(bench, summarize):
    bench.feed(xid(79))
    bench.feed(xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"))
    text = xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")
    assert summarize(bench.feed(text, 1)) == [(GPU, "driver", ("Xid154",), ())]
    assert bench.judge.state().open[0].reason == "Xid79"


# ---- 144 to 150 -------------------------------------------------------------------------------------------------


def nvlink5(code, unit, word, info, status):
    return xid(code, f"{unit}  {word}   XC0 i0 Link 09 (0x{info:08x} 0x{status:08x} 0x0 0x0 0x0 0x0)")


V1_SAW, V2_SAW = 0b0000100001, 0b0000001
V1_RXPIPE, V1_RXPIPE_RESET = 0b00011000010, 0b10011000010


@pytest.mark.parametrize(
    ("text", "verdict", "asks", "reason"),
    [
        (nvlink5(144, "SAW_MVB", "Fatal", V1_SAW, 2), "FAIL", "reset", "Xid144:SAW_MVB"),
        (nvlink5(144, "SAW_MVB", "Fatal", V2_SAW, 2), "FAIL", "reset", "Xid144:SAW_MVB"),
        (nvlink5(144, "SAW_MVB", "Nonfatal", V1_SAW, 1), "WARN", "", "Xid144:SAW_MVB"),
        # two bits of errorStatus at once: the line's own word decides between their rows
        (nvlink5(144, "SAW_MVB", "Fatal", V1_SAW, 3), "FAIL", "reset", "Xid144:SAW_MVB"),
        (nvlink5(144, "SAW_MVB", "Nonfatal", V1_SAW, 3), "WARN", "", "Xid144:SAW_MVB"),
        (nvlink5(145, "RLW_REMAP", "Nonfatal", 0b0010000010, 1), "WARN", "restart-app", "Xid145:RLW_REMAP"),
        (nvlink5(145, "RLW_RXPIPE", "Nonfatal", V1_RXPIPE, 1), "WARN", "", "Xid145:RLW_RXPIPE"),
        (nvlink5(145, "RLW_RXPIPE", "Nonfatal", V1_RXPIPE_RESET, 1), "FAIL", "reset", "Xid145:RLW_RXPIPE"),
        (nvlink5(149, "NETIR_LINK_EVT", "Fatal", 0x025525C6, 0), "FAIL", "reset", "Xid149:NETIR_LINK_EVT"),
        (
            nvlink5(149, "NETIR_LINK_DOWN/NETIR_LINK_EVT", "Fatal", 0x025525C6, 0),
            "FAIL",
            "reset",
            "Xid149:NETIR_LINK_DOWN",
        ),
        (nvlink5(150, "MSE_WATCHDOG", "Fatal", 0, 0), "FAIL", "reset", "Xid150:MSE_WATCHDOG"),
        (nvlink5(150, "MSE Degraded", "Fatal", 0, 0xFFFFFFFF), "FAIL", "reset", "Xid150:MSE_Degraded"),
        # no row fits: the line's own word
        (nvlink5(149, "NEW_UNIT", "Fatal", 1, 1), "FAIL", "contact", "Xid149:NEW_UNIT"),
        (nvlink5(149, "NEW_UNIT", "Non-fatal", 1, 1), "WARN", "", "Xid149:NEW_UNIT"),
        (nvlink5(144, "SAW_MVB", "Fatal", V1_SAW, 0x40), "FAIL", "contact", "Xid144:SAW_MVB"),
        (xid(149, "NETIR_LINK_EVT Fatal XC0"), "FAIL", "contact", "Xid149:NETIR_LINK_EVT"),
        (xid(149, "something Non-fatal"), "WARN", "", "Xid149"),
        (xid(149), "WARN", "", "Xid149"),
    ],
)
def test_nvlink5_errors_are_decoded(text, verdict, asks, reason, bench, summarize):
    assert summarize(bench.feed(text)) == [(GPU, reason, verdict, asks)]


# ---- 74 ---------------------------------------------------------------------------------------------------------


def link_error(*registers, link=14):
    printed = ", ".join(hex(register) for register in (*registers, *[0] * (7 - len(registers))))
    return xid(74, f"pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {link}({printed})")


@pytest.mark.parametrize(
    ("text", "verdict", "asks"),
    [
        (link_error(1 << 0), "WARN", ""),  # can be ignored
        (link_error(1 << 20), "WARN", "contact"),  # secondary
        (link_error(1 << 20 | 1 << 8), "FAIL", "contact"),  # the other one counts
        (link_error(1 << 21), "FAIL", "contact"),
        (link_error(0, 0, 1 << 13), "FAIL", "contact"),
        (link_error(0, 0, 0, 1 << 18), "FAIL", "reset"),
        (link_error(0, 0, 0, 1 << 18, 1 << 20), "FAIL", "reset"),
        (link_error(0, 0, 0, 0, 1 << 20), "WARN", ""),  # NVIDIA: continue operation
        (link_error(1 << 0 | 1 << 31), "FAIL", "contact"),  # a bit nobody names
        (link_error(), "FAIL", "contact"),  # nothing to decode
        (link_error(0, 0xFF), "FAIL", "contact"),  # a register without a meaning
        (xid(74, "NVLink: fatal error detected on link 14"), "FAIL", "contact"),
        (xid(74), "FAIL", "contact"),
    ],
)
def test_the_registers_of_74_are_decoded(text, verdict, asks, bench, summarize):
    assert summarize(bench.feed(text)) == [(GPU, "Xid74", verdict, asks)]


def test_an_ecc_error_of_74_fails_when_seen_more_than_twice_on_one_link(bench, summarize):
    assert summarize(bench.feed(link_error(1 << 4), 0)) == [(GPU, "Xid74", "WARN", "contact")]
    assert summarize(bench.feed(link_error(1 << 4), 100)) == [(GPU, "Xid74", "WARN", "contact")]
    assert summarize(bench.feed(link_error(1 << 4, link=2), 200)) == [(GPU, "Xid74", "WARN", "contact")]
    assert summarize(bench.feed(link_error(1 << 4), 300)) == [(GPU, "Xid74", "FAIL", "contact")]


# ---- UUID and reset ---------------------------------------------------------------------------------------------


def test_a_reset_that_worked_ends_what_asked_for_one(bench, summarize):
    bench.feed(MAP)
    bench.feed(xid(48))
    bench.feed(xid(79))
    done = f"GPU reset executed: {UUID}, success: true"
    assert summarize(bench.feed(done, 5)) == [(GPU, "driver", (), ("reset",))]
    assert [found.reason for found in bench.judge.state().open] == ["Xid79"]


def test_the_uuid_is_still_known_after_a_restart(bench, summarize):
    bench.feed(MAP)
    assert bench.restart() == ""
    assert summarize(bench.feed(f"GPU reset executed: {UUID}, success: true")) == [(GPU, "driver", (), ("reset",))]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
        "NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, timeout 5200 [ms]",
        "NVRM: GPU0 _kgspRpcGspEventPmuHalted: Received signal from GSP that PMU has halted.",
    ],
)
def test_a_reset_that_worked_ends_what_asked_for_one_without_naming_a_gpu(line, bench):
    (sign,) = bench.feed(line)
    assert (sign.component, str(sign.verdict), str(sign.fault_class)) == ("host", "FAIL", "reset")
    bench.feed(f"GPU reset executed: {UUID}, success: false", 1)
    assert bench.judge.state().open != []
    bench.feed(f"GPU reset executed: {UUID}, success: true", 2)
    assert "host" not in {found.component for found in bench.judge.state().open}


def test_a_reset_that_failed_asks_for_a_reboot_and_a_later_success_ends_it(bench, summarize):
    bench.feed(MAP)
    failed = summarize(bench.feed(f"GPU reset executed: {UUID}, success: false"))
    assert failed == [(GPU, "GpuResetFailed", "FAIL", "reboot")]
    assert summarize(bench.feed(f"GPU reset executed: {UUID}, success: true")) == [
        (GPU, "driver", ("GpuResetFailed",), ()),
        (GPU, "driver", (), ("reset",)),
    ]


def test_a_reset_of_an_unknown_gpu_is_counted_and_a_failed_one_names_its_uuid(bench, summarize):
    assert bench.feed(f"GPU reset executed: {UUID}, success: true") == []
    assert bench.judge.counters.unknown_gpus == 1
    failed = summarize(bench.feed(f"GPU reset executed: {UUID}, success: false"))
    assert failed == [(f"gpu/{UUID}", "GpuResetFailed", "FAIL", "reboot")]


def test_the_memory_of_uuids_is_bounded(bench):
    for number in range(2000):
        bench.feed(f"NVRM: GPU at PCI:0000:{number % 256:02x}:00: GPU-{number}")
    assert len(bench.judge.state().gpus) == 256


# ---- who wrote it -----------------------------------------------------------------------------------------------


def test_lines_from_user_space_count_by_default_and_are_marked(bench):
    (sign,) = bench.feed(xid(79), user=True)
    assert (sign.origin, sign.verdict, sign.fault_class) == (Origin.USER, Verdict.FAIL, FaultClass.REBOOT)


def test_lines_from_user_space_can_be_refused(new_bench):
    bench = new_bench(refuse_user=True)
    assert bench.feed(xid(79), user=True) == []
    assert bench.judge.counters.refused_user == 1
    assert len(bench.feed(xid(79))) == 1


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("00000000:B3:00.0", "0000:b3:00.0"),
        ("0000:b3:00", "0000:b3:00.0"),
        ("10000:b3:00.1", "10000:b3:00.1"),
        ("00010000:b3:00", "10000:b3:00.0"),
    ],
)
def test_a_device_has_one_name_however_its_address_is_printed(printed, name, bench):
    (sign,) = bench.feed(f"NVRM: Xid (PCI:{printed}): 79, pid=1")
    assert sign.component == f"gpu/{name}"
