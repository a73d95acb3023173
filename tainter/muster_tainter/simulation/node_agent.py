"""A simulated agent: the findings of one node, its boots and its answers, as the NodeHealth that it would publish."""

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.objects import Metadata
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import (
    CLEARED_LIMIT,
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
from muster_tainter.faults.node_report import FaultKey
from muster_tainter.faults.record.check_history import ANNOTATION as TESTS
from muster_tainter.faults.record.check_history import CheckHistory, CheckRecord, encode_history, is_ours

_IDENTITY = AgentIdentity(pod_uid="simulated")
_ANSWERS_LIMIT = 16


class NodeAgent:
    """requests, clears, annotations: what the tainter and people write into the NodeHealth. idle_since: 0 with a job.

    tested: checks that an idle node of a pool with spares passes again and again until ``tested_until``, as far as the
    spares are concerned. planned: heavy checks that fall due from time to time, and after a boot; due: of these; ran:
    when checks last ran in this boot; tests: the history of planned ones, which the tainter writes. Times in seconds
    since the epoch
    """

    __slots__ = (
        "_answers", "_boot", "_cleared", "_created", "_findings", "_numbers", "annotations", "clears", "due",
        "idle_since", "name", "planned", "ran", "requests", "tested", "tested_until", "tests",
    )  # fmt: skip

    def __init__(self, name: str, created: float = 0.0) -> None:
        self.name = name
        self._created = rfc3339(created)
        self.idle_since = 0.0
        self.requests: tuple[CheckRequest, ...] = ()
        self.clears: tuple[ClearEntry, ...] = ()
        self.annotations: dict[str, str] = {}
        self.tested: tuple[str, ...] = ()
        self.tested_until = 0.0
        self.planned: tuple[str, ...] = ()
        self.due: tuple[str, ...] = ()
        self.ran: dict[str, float] = {}
        self.tests = CheckHistory()
        self._boot = 1
        self._findings: dict[FaultKey, ReportedFinding] = {}
        self._cleared: dict[str, tuple[ClearedFault, ...]] = {}
        self._numbers: dict[str, int] = {}
        self._answers: tuple[RequestAnswer, ...] = ()

    @property
    def plans_something(self) -> bool:
        """A planned check was requested and has not been noted."""
        return any(map(is_ours, self.requests))

    def has_answered(self, request: CheckRequest) -> bool:
        return any(answer.id == request.id for answer in self._answers)

    def find(self, key: FaultKey, fault_class: str, now: float) -> None:
        """The fault shows itself (again): a new occurrence."""
        check, component, reason = key
        self._numbers[check] = number = self._numbers.get(check, 0) + 1
        seen = rfc3339(now)
        self._findings[key] = ReportedFinding(
            component=component, reason=reason, verdict=Verdict.FAIL, message="simulated", fault_class=fault_class,
            first_seen=seen, last_seen=seen, occurrence=number,
        )  # fmt: skip

    def reboot(self) -> None:
        """A new boot: logs are empty, and checks measure anew."""
        self._boot += 1
        self.due = self.planned
        self.ran.clear()
        self._findings.clear()
        self._cleared.clear()

    def recover(self, key: FaultKey, now: float) -> None:
        """The driver reports that the fault is over, without a reboot."""
        finding = self._findings.pop(key, None)
        if finding is None:
            return
        over = ClearedFault(key[1], key[2], finding.occurrence, "driver", rfc3339(now))
        self._cleared[key[0]] = (over, *self._cleared.get(key[0], ()))[:CLEARED_LIMIT]

    def occurrence(self, key: FaultKey) -> int:
        """Of the last finding of the check."""
        return self._numbers.get(key[0], 0)

    def drop_cleared(self) -> None:
        """Findings that spec.clear names are over."""
        for clear in self.clears:
            for key in list(self._findings):
                matches = key[0] == clear.check and clear.component in ("*", key[1])
                if matches and self._findings[key].occurrence <= clear.occurrence:
                    del self._findings[key]

    def answer(self, request: CheckRequest, verdict: Verdict, reason: str, now: float) -> None:
        runs = int(request.params.get("runs", "1"))
        passes = runs if verdict is Verdict.PASS else 0
        if verdict is not Verdict.UNKNOWN and "device" not in request.params:
            self.due = tuple(check for check in self.due if check not in request.checks)
            self.ran.update(dict.fromkeys(request.checks, now))
        made = RequestAnswer(request.id, verdict, runs, passes, finished=rfc3339(now), reason=reason)
        self._answers = (made, *self._answers)[:_ANSWERS_LIMIT]

    def health(self, *, for_plan: bool = False) -> NodeHealth:
        """for_plan: with the true history of the node's tests, where the others see ``tested``."""
        by_check: dict[str, list[ReportedFinding]] = {check: [] for check in self._numbers}
        for key, finding in self._findings.items():
            by_check[key[0]].append(finding)
        checks = tuple(
            ReportedCheck(
                name=check,
                verdict=Verdict.FAIL if findings else Verdict.PASS,
                findings=tuple(findings),
                last_occurrence=self._numbers[check],
                cleared=self._cleared.get(check, ()),
            )
            for check, findings in sorted(by_check.items())
        )
        annotations, past, due = self.annotations, self.tests, self.due
        if self.tested and self.idle_since and not for_plan:
            at = rfc3339(self.tested_until)
            past, due = CheckHistory(checks={check: CheckRecord(at=at) for check in self.tested}), ()
        if past.checks or past.after:
            annotations = {**annotations, TESTS: encode_history(past)}
        return NodeHealth(
            metadata=Metadata(name=self.name, annotations=annotations, creation_timestamp=self._created),
            spec=NodeHealthSpec(requests=self.requests, clear=self.clears),
            status=NodeHealthStatus(
                verdict=Verdict.FAIL if self._findings else Verdict.PASS,
                checks=checks,
                boot_id=f"boot-{self._boot}",
                agent=_IDENTITY,
                idle_since=rfc3339(self.idle_since) if self.idle_since else "",
                answers=self._answers,
                due=due,
            ),
        )


def annotated(annotations: dict[str, str], key: str, value: str) -> dict[str, str]:
    """``annotations`` with ``key``; without it if the value is empty."""
    kept = {name: text for name, text in annotations.items() if name != key}
    return {**kept, key: value} if value else kept
