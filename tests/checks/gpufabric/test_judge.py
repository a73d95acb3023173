"""What the state of the fabric and the driver's recovery action come to."""

from pathlib import Path
from typing import Any

import pytest
from tests.checks.nvidia.on_bus import Clock, answer, gpu_node
from tests.checks.nvidia.samples_of import changed, healthy, of, series

from muster_checks.base.execution import NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gpufabric import GPUFABRIC, GpufabricParameters
from muster_checks.gpufabric.judge import judge, unregistered
from muster_checks.nvidia.gpu import Gpu, GpuFabric, RecoveryAction

LIMITS = GpufabricParameters()
PASS, WARN, FAIL = Verdict.PASS, Verdict.WARN, Verdict.FAIL
NONE, RESET, REBOOT, CONTACT, RESTART = (
    FaultClass.NONE,
    FaultClass.RESET,
    FaultClass.REBOOT,
    FaultClass.CONTACT,
    FaultClass.RESTART_APP,
)


def judged(gpu: Gpu, *registering: float) -> list[tuple[Verdict, str, FaultClass]]:
    """``registering``: samples of not being registered, a minute apart."""
    counted = series(**{gpu.component: [(60.0 * place, value) for place, value in enumerate(registering)]})
    return [(f.verdict, f.reason, f.fault_class) for f in judge(of(gpu), counted, LIMITS)]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (RecoveryAction.NONE, (PASS, "Ok", NONE)),
        (RecoveryAction.RESET, (FAIL, "RecoveryReset", RESET)),
        (RecoveryAction.REBOOT, (FAIL, "RecoveryReboot", REBOOT)),
        (RecoveryAction.DRAIN_P2P, (WARN, "RecoveryDrainP2p", RESTART)),
        (RecoveryAction.DRAIN_AND_RESET, (FAIL, "RecoveryDrainAndReset", RESET)),
        (RecoveryAction.RECOVER_IMEX, (WARN, "RecoveryRecoverImexDomain", CONTACT)),
        (RecoveryAction.BUS_RESET, (FAIL, "RecoveryBusReset", RESET)),
        (RecoveryAction.SYSTEM_REBOOT, (FAIL, "RecoverySystemReboot", REBOOT)),
    ],
)
def test_every_recovery_action_has_its_class(action: RecoveryAction, expected: tuple[Verdict, str, FaultClass]) -> None:
    assert judged(changed(healthy(), recovery=action)) == [expected]


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ({}, (PASS, "Ok", NONE)),
        ({"status": "Unknown Error"}, (FAIL, "FabricError", CONTACT)),
        ({"state": "in-progress"}, (WARN, "FabricNotReady", NONE)),
        ({"state": "not-started"}, (WARN, "FabricNotReady", NONE)),
        ({"state": "7"}, (Verdict.UNKNOWN, "NotReadable", NONE)),  # of a driver newer than this
        ({"summary": "healthy", "bandwidth_degraded": False, "misconfigured": ""}, (PASS, "Ok", NONE)),
        ({"summary": "unhealthy"}, (FAIL, "FabricUnhealthy", CONTACT)),
        ({"route_unhealthy": True}, (FAIL, "FabricUnhealthy", CONTACT)),
        ({"misconfigured": "insufficient NVLinks"}, (FAIL, "FabricUnhealthy", CONTACT)),
        ({"summary": "limited-capacity"}, (WARN, "FabricLimited", NONE)),
        ({"bandwidth_degraded": True}, (WARN, "FabricLimited", NONE)),
        ({"route_recovery": True}, (WARN, "FabricLimited", NONE)),
        ({"access_timeout_recovery": True}, (WARN, "FabricLimited", NONE)),
    ],
)
def test_state_and_health(fabric: dict[str, Any], expected: tuple[Verdict, str, FaultClass]) -> None:
    assert judged(changed(healthy(), fabric=fabric)) == [expected]


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([1.0], WARN),
        ([1.0] * 10, WARN),
        ([1.0] * 11, FAIL),
        ([0.0] + [1.0] * 11, FAIL),
        ([1.0] * 20 + [0.0] + [1.0] * 5, WARN),
    ],
)
def test_a_registration_that_takes_too_long_fails(samples: list[float], verdict: Verdict) -> None:
    (found,) = judged(changed(healthy(), fabric={"state": "in-progress"}), *samples)
    assert found == (verdict, "FabricNotReady", REBOOT if verdict is FAIL else NONE)


def test_what_is_wrong_is_named() -> None:
    gpu = changed(healthy(), fabric={"summary": "unhealthy", "route_unhealthy": True, "misconfigured": "no partition"})
    (finding,) = judge(of(gpu), {}, LIMITS)
    assert "(route unhealthy, no partition)" in finding.message


def test_a_gpu_without_a_fabric_passes_by_its_recovery_action_alone() -> None:
    assert judged(Gpu(index=0, recovery=RecoveryAction.NONE)) == [(PASS, "Ok", NONE)]
    assert judged(Gpu(index=0, recovery=RecoveryAction.NONE, fabric=GpuFabric(state="not-supported"))) == [
        (PASS, "Ok", NONE)
    ]


def test_a_gpu_that_tells_neither_is_skipped() -> None:
    with pytest.raises(NotHere):
        judged(Gpu(index=0, fabric=GpuFabric(state="not-supported")))


def test_a_fabric_that_cannot_be_read_is_unknown() -> None:
    gpu = Gpu(index=0, errors={"fabric": "Unknown Error"})
    assert judged(gpu) == [(Verdict.UNKNOWN, "NotReadable", NONE)]


def test_only_gpus_with_a_fabric_are_watched() -> None:
    sound = healthy()
    waiting = changed(sound, address="0000:01:00.0", fabric={"state": "not-started"})
    others = (Gpu(index=2), changed(sound, address="0000:02:00.0", lost="GPU is lost"))
    assert unregistered(of(sound, waiting, *others)) == {sound.component: 0.0, waiting.component: 1.0}


async def test_a_fabric_manager_that_never_starts_fails_after_ten_minutes(tmp_path: Path) -> None:
    clock = Clock()
    view = gpu_node(tmp_path, answer(of(changed(healthy(), fabric={"state": "not-started"}))), clock=clock)
    verdicts = []
    for _ in range(12):
        verdicts.append((await run_probe(GPUFABRIC, view, LIMITS)).verdict)
        clock.now += 60
    assert verdicts == [WARN] * 10 + [FAIL] * 2
