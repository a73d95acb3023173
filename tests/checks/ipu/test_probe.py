"""The check ``ipu`` as it is run: recorded tools, counters over time, and what the whole run comes to."""

import pytest
from tests.checks.graphcore.sample import sample

from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Verdict
from muster_checks.ipu import IPU, IpuParameters
from muster_checks.ipu.probe import probe
from muster_checks.registry import load_registry
from muster_checks.testing.recorded import failed, hung, node

ONE = b"Partition: p1 [active]\n-+- Id: [0], target: [Fabric], IPU-M host: [10.2.0.31], IPU#: [3]\n"
TWO = ONE + ONE.replace(b"[0]", b"[1]").replace(b"IPU#: [3]", b"IPU#: [2]")
M2000 = sample("gc_info_device_m2000.txt")
AT_ONCE = IpuParameters(first_interval_s=0.0)


class Clock:
    """Hours pass when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _answers(**more):
    return {"gc-info -l": ONE, "gc-info -d": M2000, "python3": b"{}\n", **more}


def _verdicts(findings):
    return {(finding.component, finding.reason): finding.verdict for finding in findings}


async def test_a_sound_ipu_machine_passes(tmp_path):
    findings = await probe(node(tmp_path, _answers()), AT_ONCE, {})
    assert _verdicts(findings) == {("ipu/10.2.0.31/3", "Healthy"): Verdict.PASS}


async def test_counters_are_judged_by_their_rise_over_hours(tmp_path):
    clock, count = Clock(), 41_207

    def attributes(_argv):
        return M2000.replace(b"41207", str(count).encode())

    view = node(tmp_path, _answers(**{"gc-info -d": attributes}), clock)
    for _ in range(5):  # a quiet hour
        assert _verdicts(await probe(view, AT_ONCE, {})) == {("ipu/10.2.0.31/3", "Healthy"): Verdict.PASS}
        clock.now_s += 900.0
    for _ in range(2):
        count += 1000
        findings = await probe(view, AT_ONCE, {})
        clock.now_s += 900.0
    assert _verdicts(findings) == {("ipu/10.2.0.31/3", "HostLinkErrors"): Verdict.WARN}
    for _ in range(6):
        clock.now_s += 900.0
        findings = await probe(view, AT_ONCE, {})
    assert _verdicts(findings) == {("ipu/10.2.0.31/3", "Healthy"): Verdict.PASS}


async def test_a_counter_that_began_anew_is_no_storm(tmp_path):
    clock, count = Clock(), 41_207
    view = node(tmp_path, _answers(**{"gc-info -d": lambda _: M2000.replace(b"41207", str(count).encode())}), clock)
    await probe(view, AT_ONCE, {})
    clock.now_s += 900.0
    count = 3
    assert _verdicts(await probe(view, AT_ONCE, {})) == {("ipu/10.2.0.31/3", "Healthy"): Verdict.PASS}


async def test_an_ipu_that_the_library_calls_failed_is_not_sound_besides(tmp_path):
    health = b'{"hosts": {"10.2.0.31": [{"error": "device", "id": "0", "partition": "p1", "board ipu index": "3"}]}}'
    findings = await probe(node(tmp_path, _answers(**{"gc-info -l": TWO, "python3": health})), AT_ONCE, {})
    assert _verdicts(findings) == {
        ("ipu/10.2.0.31/3", "Unhealthy:device"): Verdict.FAIL,
        ("ipu/10.2.0.31/2", "Healthy"): Verdict.PASS,
    }


async def test_one_ipu_that_hangs_leaves_the_others_judged(tmp_path):
    answers = _answers(**{"gc-info -l": TWO, "gc-info -d 1": hung("gc-info -d 1")})
    assert _verdicts(await probe(node(tmp_path, answers), AT_ONCE, {})) == {
        ("ipu/10.2.0.31/3", "Healthy"): Verdict.PASS,
        ("ipu/10.2.0.31/2", "NotReadable"): Verdict.UNKNOWN,
    }


@pytest.mark.parametrize("bad", [failed("python3", 1, b"boom"), failed("python3", -11), hung("python3"), b"no\n"])
async def test_a_broken_library_leaves_the_attributes_judged(tmp_path, bad):
    findings = await probe(node(tmp_path, _answers(python3=bad)), AT_ONCE, {})
    assert _verdicts(findings) == {
        ("host", "HealthNotRead"): Verdict.UNKNOWN,
        ("ipu/10.2.0.31/3", "Healthy"): Verdict.PASS,
    }


async def test_a_run_without_any_ipu_is_skipped_and_without_tools_unknown(tmp_path, monkeypatch):
    monkeypatch.delenv("IPUOF_VIPU_API_HOST", raising=False)
    monkeypatch.delenv("IPUOF_CONFIG_PATH", raising=False)
    assert (await run_probe(IPU, node(tmp_path), AT_ONCE)).verdict is Verdict.SKIP
    monkeypatch.setenv("IPUOF_VIPU_API_HOST", "10.1.5.1")
    result = await run_probe(IPU, node(tmp_path), AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert "Poplar SDK" in result.message


async def test_a_file_of_expected_values_that_cannot_be_used_is_unknown(tmp_path):
    result = await run_probe(IPU, node(tmp_path, _answers()), IpuParameters(expected=tmp_path / "none.yaml"))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "BadExpectations")


def test_both_ipu_checks_are_shipped():
    assert {"ipu", "ipulink"} <= set(load_registry(plug_ins=[]))
