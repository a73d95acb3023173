"""Which services a node stands on, and when one of them is a fault."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, huge, mangled, verdicts_of

from muster_checks.base.counter_history import Rise
from muster_checks.base.execution import CannotTell, NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.services import SERVICES, ServicesParameters
from muster_checks.services.judge import judge
from muster_checks.services.parse import SystemdUnit
from muster_checks.services.probe import judge_recorded
from muster_checks.testing.recorded import Answer, failed, hung, lay_out, node

SAMPLE = (Path(__file__).parent / "samples" / "gpu-node.txt").read_bytes()
RUNNING = SystemdUnit(
    name="kubelet.service", load="loaded", active="active", sub="running", file_state="enabled", restarts=0
)


SWITCH = "/sys/bus/pci/devices/0000:c1:00.0"


async def run(tmp_path: Path, answer: Answer, **parameters: object):
    lay_out(tmp_path, {"/run/systemd/system/x": ""})
    return await run_probe(SERVICES, node(tmp_path, {"systemctl": answer}), ServicesParameters(**parameters))


async def test_enabled_services_are_judged_and_disabled_ones_left_alone(tmp_path: Path):
    lay_out(tmp_path, {f"{SWITCH}/vendor": "0x10de", f"{SWITCH}/device": "0x22a3", f"{SWITCH}/class": "0x068000"})
    result = await run(tmp_path, SAMPLE)
    assert {f.component: (f.verdict, f.reason) for f in result.findings} == {
        "service/kubelet": (Verdict.PASS, "Running"),
        "service/containerd": (Verdict.PASS, "Running"),
        "service/nvidia-fabricmanager": (Verdict.FAIL, "NotRunning"),
        "service/nvidia-persistenced": (Verdict.WARN, "NotRunning"),
    }
    failing = result.findings[0]
    assert failing.fault_class is FaultClass.CONTACT
    assert "result exit-code" in failing.message
    assert "journalctl -u nvidia-fabricmanager.service" in failing.message
    assert not any("journalctl" in f.message for f in result.findings if f.verdict is Verdict.PASS)


async def test_a_fabric_manager_that_has_no_switch_to_manage_asks_for_nobody(tmp_path: Path):
    result = await run(tmp_path, SAMPLE)
    [found] = [f for f in result.findings if f.component == "service/nvidia-fabricmanager"]
    assert (found.verdict, found.fault_class) == (Verdict.WARN, FaultClass.NONE)
    named = await run(tmp_path, SAMPLE, units="nvidia-fabricmanager")
    assert [f.verdict for f in named.findings] == [Verdict.FAIL], "a unit that is named must run"


@pytest.mark.parametrize(("runtime", "verdict"), [("active", Verdict.WARN), ("inactive", Verdict.FAIL)])
def test_docker_is_vital_only_where_no_other_runtime_runs(runtime: str, verdict: Verdict):
    docker = SystemdUnit(name="docker.service", load="loaded", active="inactive", sub="dead", file_state="enabled")
    other = SystemdUnit(name="containerd.service", load="loaded", active=runtime, file_state="disabled")
    assert [f.verdict for f in judge([docker, other], {}, [], 4)] == [verdict]


async def test_a_service_asked_for_by_name_must_be_there(tmp_path: Path):
    result = await run(tmp_path, SAMPLE, units="crio, docker.service,kubelet,gone")
    assert {f.component: (f.verdict, f.reason) for f in result.findings} == {
        "service/crio": (Verdict.FAIL, "UnitMissing"),
        "service/docker": (Verdict.FAIL, "NotRunning"),
        "service/kubelet": (Verdict.PASS, "Running"),
        "service/gone": (Verdict.UNKNOWN, "UnitNotTold"),
    }


async def test_names_cannot_be_options(tmp_path: Path):
    view = node(lay_out(tmp_path, {"/run/systemd/system/x": ""}), {"systemctl": SAMPLE})
    await run_probe(SERVICES, view, ServicesParameters(units="--root=/,kubelet"))
    ((line, _),) = view.commands.calls  # type: ignore[attr-defined] # the recorded one
    assert line[-2:] == ("--", "kubelet.service")


async def test_no_restarts_are_kept_of_services_that_do_not_run(tmp_path: Path):
    """Names come from who asks; readings of a node have room for so many."""
    shown = b"Id=made-up@1.service\nLoadState=loaded\nActiveState=inactive\nSubState=dead\nNRestarts=0\n"
    shown += b"\nId=kubelet.service\nLoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=2\n"
    view = node(lay_out(tmp_path, {"/run/systemd/system/x": ""}), {"systemctl": shown})
    await run_probe(SERVICES, view, ServicesParameters(units="made-up@1,kubelet"))
    assert view.history.of("services").keys() == {"kubelet.service"}


def test_restarts_are_judged_by_how_many_come_within_the_window():
    rises = {"kubelet.service": Rise(5.0, 1100.0)}
    (often,) = judge([RUNNING], rises, [], 4)
    assert (often.verdict, often.reason) == (Verdict.WARN, "RestartsOften")
    (fine,) = judge([RUNNING], rises, [], 5)
    assert fine.verdict is Verdict.PASS


async def test_many_restarts_long_ago_are_no_fault(tmp_path: Path):
    result = await run(tmp_path, SAMPLE.replace(b"NRestarts=0", b"NRestarts=900"), units="kubelet")
    assert result.verdict is Verdict.PASS


def test_a_service_between_two_starts_warns():
    unit = SystemdUnit(
        name="kubelet.service", load="loaded", active="activating", sub="auto-restart", file_state="enabled"
    )
    (finding,) = judge([unit], {}, [], 4)
    assert (finding.verdict, finding.reason) == (Verdict.WARN, "Restarting")


async def test_a_node_without_systemd_is_skipped(tmp_path: Path):
    result = await run_probe(SERVICES, node(tmp_path), ServicesParameters())
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoSystemd")


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        (failed("systemctl", 1, b"Failed to connect to bus: Host is down"), "SystemdNotAnswering", "Host is down"),
        (failed("systemctl", 127), "SystemdNotAnswering", "127"),
        (failed("systemctl", -9), "SystemdNotAnswering", "SIGKILL"),
        (hung("systemctl"), "SystemdNotAnswering", "10 s"),
        (b"", "Unreadable", ""),
    ],
)
async def test_systemctl_on_a_bad_day_is_unknown(tmp_path: Path, answer: Answer, reason: str, said: str):
    result = await run(tmp_path, answer)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, reason)
    assert said in result.message


async def test_without_systemctl_the_package_is_named(tmp_path: Path):
    lay_out(tmp_path, {"/run/systemd/system/x": ""})
    result = await run_probe(SERVICES, node(tmp_path), ServicesParameters())
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert "install systemd" in result.message


def test_no_enabled_service_is_nothing_to_judge():
    with pytest.raises(NotHere):
        judge([SystemdUnit(name="kubelet.service", load="loaded", file_state="disabled")], {}, [], 4)
    with pytest.raises(CannotTell):
        judge([], {}, ["kubelet.service"], 4)


def test_recorded_output_is_recognised_by_its_form():
    assert judge_recorded(b"[ 1.0] kernel line", ServicesParameters()) is None
    assert Verdict.FAIL in verdicts_of(judge_recorded(SAMPLE, ServicesParameters()))


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_never_fails(text: bytes):
    try:
        findings = judge_recorded(b"LoadState=\n" + text, ServicesParameters(units="kubelet"))
    except UNMEASURED:
        return
    assert Verdict.FAIL not in verdicts_of(findings)


def test_a_hundred_megabytes_never_fail():
    test_text_of_another_kind_never_fails(huge(b"Id=a\nLoadState=loaded\n", b"Id=b\n"))


def test_a_sample_cut_short_says_nothing_worse_than_the_whole():
    for text in mangled(SAMPLE):
        try:
            findings = judge_recorded(text, ServicesParameters()) or []
        except UNMEASURED:
            continue
        assert {f.component for f in findings if f.verdict is Verdict.FAIL} <= {"service/nvidia-fabricmanager"}


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(text: bytes):
    try:
        findings = judge_recorded(b"LoadState=\n\n" + text, ServicesParameters())
    except UNMEASURED:
        return
    assert verdicts_of(findings)
