"""A played cluster whose agents carry out what jobs ask of their nodes, and whose scheduler heeds what pods avoid."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from tests.operator.plan.faulty_cluster import ROUND_S, FaultyCluster

from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CheckRequest, RequestAnswer
from muster_operator.job import names
from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.job.snapshot import (
    Action,
    CreateObject,
    JobPlan,
    NodeCapacity,
    RecordEvent,
    RequestChecks,
    Snapshot,
    WithdrawRequests,
)
from muster_operator.job.types import IPUJob
from muster_operator.plan.hardware.preflight import avoided_nodes

CANNOT_BE_ASKED = "its NodeHealth has 16 requests already"


@dataclass
class PreFlightCluster(FaultyCluster):
    """says: by node, the verdict of its checks, PASS where nothing stands; "": its agent is silent. requests: by node
    and id. ran: how often a node's agent ran for an id. full: nodes that take no request. told: Events, in order."""

    says: dict[str, str] = field(default_factory=dict)
    requests: dict[str, dict[str, CheckRequest]] = field(default_factory=dict)
    answers: dict[tuple[str, str], RequestAnswer] = field(default_factory=dict)
    ran: Counter[tuple[str, str]] = field(default_factory=Counter)
    full: set[str] = field(default_factory=set)
    readable: bool = True
    told: list[RecordEvent] = field(default_factory=list)
    avoids: dict[str, list[str]] = field(default_factory=dict)

    def snapshot(
        self, job: IPUJob, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> Snapshot:
        plain = super().snapshot(job, foreign, refusals)
        prefix = names.request_prefix(job.metadata.uid)
        asked = {
            node: {name: self.answers.get((node, name)) for name in held if name.startswith(prefix)}
            for node, held in self.requests.items()
            if any(name.startswith(prefix) for name in held)
        }
        out = len([node for node in avoided_nodes(job, self.now) if node not in self.bad])
        assert plain.node_capacity is not None
        return Snapshot(
            **{
                **vars(plain),
                "node_capacity": NodeCapacity(plain.node_capacity.nodes, plain.node_capacity.healthy - out, out),
                "requests": asked if self.readable else None,
                "failed_requests": dict.fromkeys(self.full, CANNOT_BE_ASKED),
            }
        )

    def act(
        self, uid: str, action: Action, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> bool:
        if isinstance(action, RequestChecks):
            held = self.requests.setdefault(action.node, {})
            if action.node in self.full or action.request.id in held:
                return False
            held[action.request.id] = action.request
            self._wrote()
            return True
        if isinstance(action, WithdrawRequests):
            held = self.requests.get(action.node, {})
            doomed = [name for name in held if name.startswith(names.request_prefix(uid)) and name not in action.keep]
            for name in doomed:
                del held[name]
                self.answers.pop((action.node, name), None)
            if doomed:
                self._wrote()
            return bool(doomed)
        if isinstance(action, CreateObject) and action.kind == "Pod":
            affinity = action.body["spec"]["affinity"]["nodeAffinity"]
            terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
            self.avoids[action.name] = [
                value for term in terms for each in term.get("matchFields", []) for value in each["values"]
            ]
        return super().act(uid, action, foreign, refusals)

    def _check_plan(self, job: IPUJob, decided: JobPlan) -> None:
        super()._check_plan(job, decided)
        self.told += [each for each in decided.actions if isinstance(each, RecordEvent) and each not in self.told]

    def place(self) -> None:
        for (namespace, name), pod in sorted(self.pods.items()):
            if pod.spec.node_name or pod.metadata.deletion_timestamp:
                continue
            good = [node for node in self.nodes if node not in self.bad and node not in self.avoids.get(name, ())]
            if good:
                number = name.rpartition("-")[2]
                spec = msgspec.structs.replace(
                    pod.spec, node_name=good[(int(number) if number.isdigit() else 0) % len(good)]
                )
                self.pods[namespace, name] = msgspec.structs.replace(pod, spec=spec)
                self.set_phase((namespace, name), "Running")

    def answer(self) -> None:
        """Agents run what they have not run yet."""
        for node, held in self.requests.items():
            for name in held:
                verdict = self.says.get(node, "PASS")
                if verdict and (node, name) not in self.answers:
                    self.ran[node, name] += 1
                    why = "" if verdict == "PASS" else "LowBandwidth"
                    self.answers[node, name] = RequestAnswer(
                        id=name, verdict=verdict, finished=rfc3339(self.now), reason=why, message=why and "3 GB/s"
                    )

    def live(self, rounds: int = 8) -> None:
        for _ in range(rounds):
            super().live(1)
            self.answer()

    def waits_s(self, seconds: float) -> None:
        self.live(int(seconds / ROUND_S) + 1)

    def asked_nodes(self) -> list[str]:
        """Nodes of which something is asked."""
        return sorted(node for node, held in self.requests.items() if held)

    def events(self, reason: str) -> list[str]:
        return [each.message for each in self.told if each.reason == reason]

    def _snapshot(self) -> object:
        return super()._snapshot(), {node: dict(held) for node, held in self.requests.items()}
