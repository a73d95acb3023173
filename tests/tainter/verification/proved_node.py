"""One node whose faults are decided about and proved over by the real cores; its agent and the API are modelled."""

from typing import Any

import msgspec

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import (
    AgentIdentity,
    CheckRequest,
    ClearedFault,
    ClearEntry,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
    RequestAnswer,
)
from muster_tainter.faults.decision_context import EMPTY_CONTEXT
from muster_tainter.faults.desired_state import Decision, decide, recall_record
from muster_tainter.faults.record.node_record import NodeRecord
from muster_tainter.faults.record.verification_attempts import ANNOTATION, encode_attempts
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.verification.node_plan import LABEL, CheckCosts, NodePlan, ProofToRequest, is_ours, plan_node

LIMIT_S = 300.0
HEAVY = ("pciebw", "gpumem", "dcgm")
COSTS = CheckCosts(limit_s=lambda _: LIMIT_S, heavy=lambda check: check in HEAVY)
POLICY = """
rules:
  - name: boards
    match: {check: dmesg, component: "gpu/*", class: [replace, contact]}
    action: taint
    proof: {checks: [gpumem, dcgm], passes: 2}
  - name: hardware
    match: {class: [reset, reboot, replace, contact]}
    action: taint
    proof: {retry: 10m}
  - {name: rest, match: {verdict: [WARN, FAIL]}, action: event}
holdDown: {base: 60s}
"""
GPU = "gpu/0000:3b:00.0"


class ProvedNode:
    """now: seconds since the epoch. counters: the highest occurrence of each check."""

    def __init__(self, policy: str = POLICY, name: str = "n1") -> None:
        self.policy: Policy = parse_policy(policy)
        self.now = 1.8e9
        self.node: Node | None = Node(metadata=Metadata(name=name, resource_version="1"))
        self.health = NodeHealth(metadata=Metadata(name=name, uid="u", resource_version="1"))
        self.boot = 1
        self.counters: dict[str, int] = {}
        self.findings: dict[tuple[str, str, str], ReportedFinding] = {}
        self.over: list[tuple[str, ClearedFault]] = []
        self.answers: dict[str, RequestAnswer] = {}
        self.idle = True
        self.checks: tuple[str, ...] = ("dmesg", "pciebw", "remapped")
        self.context = EMPTY_CONTEXT
        self.idle_devices: dict[str, tuple[str, ...]] = {}
        self.publish()

    # the agent

    def publish(self) -> None:
        checks = []
        for name in self.checks:
            found = tuple(finding for key, finding in self.findings.items() if key[0] == name)
            cleared = tuple(each for check, each in self.over if check == name)[-16:]
            checks.append(
                ReportedCheck(name=name, verdict="FAIL" if found else "PASS", findings=found, cleared=cleared)
            )
        asked = {request.id for request in self.health.spec.requests}
        status = NodeHealthStatus(
            verdict="FAIL" if self.findings else "PASS",
            checks=tuple(checks),
            boot_id=f"boot-{self.boot}",
            agent=AgentIdentity(pod_uid="p"),
            idle_since="2026-01-01T00:00:00Z" if self.idle else "",
            answers=tuple(answer for name, answer in self.answers.items() if name in asked),
        )
        self.change(status=status)

    def change(self, **fields: Any) -> None:
        version = str(int(self.health.metadata.resource_version) + 1)
        metadata = msgspec.structs.replace(fields.pop("metadata", self.health.metadata), resource_version=version)
        self.health = msgspec.structs.replace(self.health, metadata=metadata, **fields)

    def fails(self, check: str = "pciebw", component: str = GPU, reason: str = "Slow", **fields: Any) -> None:
        """The finding fires (anew)."""
        self.counters[check] = self.counters.get(check, 0) + 1
        values: dict[str, Any] = {
            "verdict": "FAIL",
            "fault_class": "reset",
            "occurrence": self.counters[check],
        } | fields
        self.findings[check, component, reason] = ReportedFinding(component=component, reason=reason, **values)
        self.publish()

    def goes(self, check: str = "pciebw", how: str = "run") -> None:
        """All findings of the check are over by the agent's word."""
        for key, finding in list(self.findings.items()):
            if key[0] == check:
                del self.findings[key]
                over = ClearedFault(
                    component=key[1], reason=key[2], occurrence=finding.occurrence, how=how, at=rfc3339_whole(self.now)
                )
                self.over.append((check, over))
        self.publish()

    def reboots(self, again: tuple[tuple[str, str, str], ...] = ()) -> None:
        """again: findings that fire in the new boot, too."""
        self.boot += 1
        was, self.findings = self.findings, {}
        for key in again:
            if key in was:
                self.counters[key[0]] += 1
                self.findings[key] = msgspec.structs.replace(was[key], occurrence=self.counters[key[0]])
        self.publish()

    def answer(
        self,
        verdict: str = "PASS",
        reason: str = "",
        request: CheckRequest | None = None,
        without: tuple[str, ...] = (),
    ) -> None:
        """The agent answers, at once, what is asked (all of ours by default)."""
        for each in [request] if request is not None else self.asked():
            self.answers[each.id] = RequestAnswer(
                id=each.id,
                verdict=verdict,
                reason=reason,
                finished=rfc3339_whole(self.now),
                runs=1,
                without=without,
            )
        self.publish()

    # the API

    def asked(self) -> list[CheckRequest]:
        return [request for request in self.health.spec.requests if is_ours(request)]

    def asks_too(self, request: CheckRequest) -> None:
        """Somebody else."""
        self.change(spec=NodeHealthSpec(requests=(*self.health.spec.requests, request), clear=self.health.spec.clear))

    # the tainter

    def decide(self) -> Decision:
        """And writes it."""
        assert self.node is not None
        decision = decide(self.node, self.health, self.policy, self.now, {}, self.context)
        self.node = decision.applied(self.node)
        return decision

    def prove(self) -> NodePlan:
        return plan_node(self.node, self.health, self.policy, self.now, COSTS, self.idle_devices)

    def delete(self, made: NodePlan) -> None:
        """As :class:`muster_kube.nodehealth_requests.RequestWriter` does."""
        kept = {request.id for request in made.keep}
        requests = tuple(each for each in self.health.spec.requests if each.id in kept or not is_ours(each))
        clear = self.health.spec.clear if made.clear is None else made.clear
        text = encode_attempts(made.tried)
        metadata = msgspec.structs.replace(
            self.health.metadata, annotations={ANNOTATION: text} if text else {}, labels={LABEL: "true"} if kept else {}
        )
        self.change(metadata=metadata, spec=NodeHealthSpec(requests=requests, clear=clear))

    def ask(self, made: NodePlan, asks: tuple[ProofToRequest, ...] | None = None) -> None:
        new = tuple(ask.request(self.now) for ask in (made.asks if asks is None else asks))
        assert not {each.id for each in new} & {each.id for each in self.health.spec.requests}
        others = tuple(each for each in self.health.spec.requests if not is_ours(each))
        metadata = msgspec.structs.replace(self.health.metadata, labels={LABEL: "true"})
        spec = NodeHealthSpec(requests=(*others, *made.keep, *new), clear=self.health.spec.clear)
        self.change(metadata=metadata, spec=spec)

    def settle(self, rounds: int = 20) -> None:
        """Everything that is to be written now is written."""
        for _ in range(rounds):
            before = (self.node, self.health)
            self.decide()
            made = self.prove()
            if made.writes:
                self.delete(made)
            elif made.asks:
                self.ask(made)
            if (self.node, self.health) == before:
                return
        raise AssertionError("it does not come to rest")

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    @property
    def memory(self) -> NodeRecord:
        assert self.node is not None
        return recall_record(self.node)

    @property
    def open(self) -> list[tuple[str, str, str]]:
        return [fault.key for fault in self.memory.open]

    @property
    def tainted(self) -> bool:
        assert self.node is not None
        return any(taint.key == "muster.dev/faulty" for taint in self.node.spec.taints)

    @property
    def clears(self) -> tuple[ClearEntry, ...]:
        return self.health.spec.clear

    def proved_over(self) -> list[str]:
        return [closed.check for closed in self.memory.closed if closed.how == "proof"]


def just_tainted() -> ProvedNode:
    """pciebw has failed there."""
    made = ProvedNode()
    made.fails()
    made.settle()
    assert made.tainted
    return made
