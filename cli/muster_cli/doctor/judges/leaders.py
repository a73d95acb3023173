"""Judges whether tainter and operator have a leader, and whether Muster is paused. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, read_failures
from muster_cli.doctor.judges.parts import OPERATOR, TAINTER, InstalledPart
from muster_cli.report.quantities import age
from muster_kube.api.times import seconds
from muster_kube.controller.lease import Lease
from muster_tainter.pause import PauseMap, describe_pause

LEADERS, PAUSE = "leaders", "pause"
LEASES = {TAINTER: "muster-tainter", OPERATOR: "muster-operator"}
FRESH_S = 20.0  # Leases are renewed every two seconds; clocks may differ by this much
LASTS_S = 12.0  # longer than the ten seconds of a Lease: how long to watch a holder whose clock is wrong


@dataclass(frozen=True)
class ObservedLease:
    """moved: the Lease was renewed while we watched, which proves a leader even if its clock is wrong."""

    lease: Lease
    moved: bool = False

    @property
    def renewed(self) -> float:
        return seconds(self.lease.spec.renew_time or "")


def is_fresh(lease: Lease, now: float) -> bool:
    """Whether one read is enough to judge the Lease. now: by the clock of the API server."""
    return not lease.spec.holder_identity or abs(now - ObservedLease(lease).renewed) <= FRESH_S


def judge(
    parts: Sequence[InstalledPart], leases: Mapping[str, ObservedLease | ReadFailure | None], now: float
) -> list[DoctorFinding]:
    """leases: by kind of part. now: by the clock of the API server."""
    found: list[DoctorFinding] = []
    leading: list[str] = []
    for part in parts:
        if part.kind not in LEASES:
            continue
        held = leases.get(part.kind)
        name = f"Lease {part.namespace}/{LEASES[part.kind]}"
        mend = f"kubectl -n {part.namespace} logs -l app=muster-{part.kind} --tail=50"
        if isinstance(held, ReadFailure):
            found += read_failures(LEADERS, held)
        elif held is None:
            found.append(
                DoctorFinding(LEADERS, Verdict.FAIL, f"no {part.kind} has ever led: {name} does not exist", mend)
            )
        elif not (holder := held.lease.spec.holder_identity):
            found.append(DoctorFinding(LEADERS, Verdict.FAIL, f"no {part.kind} leads: {name} has no holder", mend))
        elif held.moved:
            skew = held.renewed - now
            what = f"{part.kind} {holder} leads, but its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
            found.append(DoctorFinding(LEADERS, Verdict.WARN, what, "run chronyc tracking on its node"))
        elif not is_fresh(held.lease, now):
            ago = f"last renewed {age(now - held.renewed)} ago by {holder}"
            found.append(DoctorFinding(LEADERS, Verdict.FAIL, f"no {part.kind} leads: {name} was {ago}", mend))
        else:
            leading.append(f"{part.kind}: {holder}")
    if leading:
        found.append(DoctorFinding(LEADERS, Verdict.PASS, "; ".join(leading)))
    return found


def judge_pause(pause: PauseMap | ReadFailure | None, now: float) -> list[DoctorFinding]:
    if isinstance(pause, ReadFailure):
        return read_failures(PAUSE, pause)
    if pause is None:
        return [DoctorFinding(PAUSE, Verdict.PASS, "not paused")]
    ago = f" ({age(now - pause.since)} ago)" if pause.since else ""
    what = f"{describe_pause(pause)}{ago}: no new taints, drains or repairs"
    return [DoctorFinding(PAUSE, Verdict.WARN, what, "muster resume")]
