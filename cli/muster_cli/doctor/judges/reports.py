"""Judges whether each NodeHealth makes sense: a taken node, or an edit by hand, may have put anything into it. Pure."""

from collections import defaultdict
from collections.abc import Mapping

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import HealthFacts
from muster_cli.doctor.findings import DoctorFinding, join_some
from muster_cli.report.quantities import plural
from muster_kube.nodehealth import NodeHealth, highest_counted
from muster_tainter.faults.node_report import find_invalid_part
from muster_tainter.faults.occurrence import is_counted

AREA = "reports"
_WHO = (
    "find out who wrote it (audit log of the API server, muster explain NODE); then: kubectl delete nodehealth NODE: "
)
_MEND = _WHO + "the tainter creates it anew, and the agent reports again"


def judge(healths: Mapping[str, HealthFacts]) -> list[DoctorFinding]:
    """healths: by node. Empty if all of them make sense."""
    forged: list[str] = []
    invalid: dict[str, list[str]] = defaultdict(list)
    for name, facts in healths.items():
        health = NodeHealth(metadata=facts.metadata, spec=facts.spec, status=facts.status)
        if _has_far_numbers(health):
            forged.append(name)
        if health.status.verdict and (problem := find_invalid_part(health)):
            invalid[problem].append(name)
    found = [
        DoctorFinding(
            AREA,
            Verdict.FAIL,
            f"{plural(len(names), 'node')} ({join_some(names)}): the NodeHealth has an invalid part,"
            f" {shorten(problem)}: its other parts can open faults, and nothing in it closes one",
            _MEND,
        )
        for problem, names in sorted(invalid.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    if forged:
        found.append(
            DoctorFinding(
                AREA,
                Verdict.WARN,
                f"{plural(len(forged), 'node')} ({join_some(forged)}): the NodeHealth has occurrence numbers"
                " that are too high to come from its agent: Muster ignores them, and they hide no later fault",
                _MEND,
            )
        )
    return found


def _has_far_numbers(health: NodeHealth) -> bool:
    numbers: dict[str, list[int]] = defaultdict(list)
    for check in health.status.checks:
        listed = [*(each.occurrence for each in check.findings), *(each.occurrence for each in check.cleared)]
        numbers[check.name] += [check.last_occurrence, *listed]
    for clear in health.spec.clear:
        numbers[clear.check].append(clear.occurrence)
    return any(is_counted(check) and max(known) > highest_counted(known) for check, known in numbers.items())
