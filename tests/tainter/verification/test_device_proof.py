"""Proof for one device that is kept out of use alone, while jobs use its siblings."""

import pytest
from tests.tainter.verification.proved_node import GPU, ProvedNode

from muster_kube.nodehealth import device_digest
from muster_tainter.devices.holders.drains import NAMES_LIMIT
from muster_tainter.faults.decision_context import DecisionContext, DeviceContext, KnownDevice
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.policy.check_facts import can_test_one_device, is_heavy

POLICY = """
rules:
  - name: hardware
    match: {class: [reset, replace]}
    action: taint
    closeOn: [proof]
    proof: {checks: [%s], passes: 1}
    holdDown: 1s
devices: {quarantine: %s}
"""
DIGESTS = ("0123456",)
OTHER = "gpu/0000:4b:00.0"


def faulty(checks: str = "gpumem", quarantine: str = "rules", *, component: str = GPU) -> ProvedNode:
    """A device of a busy node has failed a check that proves nothing by itself."""
    node = ProvedNode(POLICY % (checks, quarantine))
    node.idle = False
    device = KnownDevice(driver="gpu.nvidia.com", siblings=8, ruled=True)
    known = {each.removeprefix("gpu/"): device for each in (GPU, OTHER)}
    node.context = DecisionContext(devices=DeviceContext(known=known))
    node.checks = ("remapped",)
    node.fails("remapped", component)
    node.settle()
    node.after(61.0)
    return node


def test_a_device_that_no_pod_holds_is_proved_on_a_busy_node_and_passing_closes_its_fault() -> None:
    node = faulty()
    assert not node.asked()
    node.idle_devices = {GPU: DIGESTS}
    node.settle()
    [request] = node.asked()
    assert request.checks == ("remapped", "gpumem")
    assert {name: request.params[name] for name in ("sees", "device", "held_as")} == {
        "sees": GPU,
        "device": GPU,
        "held_as": ",".join(DIGESTS),
    }
    node.goes("remapped")
    node.answer()
    node.settle()
    assert not node.open
    assert not node.tainted


def test_each_device_has_its_own_proof() -> None:
    node = faulty()
    node.fails("remapped", OTHER)
    node.idle_devices = {OTHER: DIGESTS}
    node.settle()
    node.after(61.0)
    [request] = node.asked()
    assert request.params["device"] == OTHER
    node.goes("remapped")
    node.answer()
    node.settle()
    assert [component for _, component, _ in node.open] == [GPU]


@pytest.mark.parametrize("checks", ["pciebw", "gpumem, pciebw", "gpumem, dcgm", "gpumem, unheard"])
def test_a_check_that_shares_something_with_the_siblings_waits_until_the_node_is_idle(checks: str) -> None:
    node = faulty(checks)
    node.idle_devices = {GPU: DIGESTS}
    node.settle()
    asked_before = [request for request in node.asked() if "device" in request.params]
    assert not asked_before
    assert not any(match_policy(fault, node.policy).proof.alone for fault in node.memory.open)  # type: ignore[union-attr]


def test_a_node_that_is_tainted_for_the_device_is_proved_as_a_whole() -> None:
    node = faulty(quarantine="off")
    node.idle_devices = {GPU: DIGESTS}
    node.settle()
    assert node.tainted
    assert not node.asked()
    node.idle = True
    node.publish()
    node.settle()
    [request] = node.asked()
    assert "device" not in request.params


def test_a_pass_for_the_device_does_not_close_the_fault_of_its_node() -> None:
    node = faulty()
    node.idle_devices = {GPU: DIGESTS}
    node.settle()
    [request] = node.asked()
    node.context = DecisionContext(devices=DeviceContext(unavailable="not served"))
    node.settle()  # the node is tainted now
    node.answer(request=request)
    node.settle()
    assert node.open
    assert node.tainted


def test_only_checks_that_declare_it_can_test_one_device() -> None:
    assert can_test_one_device("gpumem")
    for check in ("pciebw", "nccl", "iperf", "dcgm", "membw", "unheard"):
        assert is_heavy(check)
        assert not can_test_one_device(check)


def test_the_names_of_a_device_fit_into_a_request() -> None:
    assert len(",".join([device_digest("d", "p", "n")] * NAMES_LIMIT)) <= 256  # of the CRD
