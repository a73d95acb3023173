"""What is written of the status, and what the server then holds."""

import msgspec

from muster_agent.findings.health_status import CheckView, compose_status, status_patch
from muster_agent.findings.ledger_seed import seed_ledger
from muster_checks.base.vocabulary import Verdict
from muster_kube.nodehealth import AgentIdentity, Metadata, NodeHealth, NodeHealthStatus, ReportedCheck


def merged(target, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


def test_a_status_patch_leaves_nothing_of_the_earlier_status():
    full = NodeHealthStatus(
        verdict="FAIL",
        failing="dmesg",
        checks=(ReportedCheck(name="dmesg", verdict="FAIL"),),
        agent=AgentIdentity(pod_uid="u", version="1"),
        due=("x",),
        boot_id="b",
    )
    for status in (
        NodeHealthStatus(verdict="PASS"),
        NodeHealthStatus(verdict="PASS", agent=AgentIdentity(version="2")),
        full,
    ):
        on_server = merged({"metadata": {"name": "n"}, "status": msgspec.to_builtins(full)}, status_patch(status))
        assert msgspec.convert(on_server, NodeHealth).status == status


def test_the_numbers_of_an_earlier_boot_are_published_even_when_nothing_is_found():
    status = compose_status(
        [CheckView(name="dmesg", verdict=Verdict.PASS, last_occurrence=5)],
        boot_id="b",
        agent=AgentIdentity(pod_uid="u", version="1"),
    )
    assert status.checks[0].last_occurrence == 5
    ledger = seed_ledger("dmesg", "the-next-boot", NodeHealth(metadata=Metadata(name="n"), status=status))
    assert ledger.counter == 5
