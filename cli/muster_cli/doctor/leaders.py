"""Whether somebody leads, and whether the brake is on. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, read_failures
from muster_cli.doctor.parts import OPERATOR, TAINTER, InstalledPart
from muster_cli.report.quantities import age
from muster_kube.api.times import seconds
from muster_kube.controller.lease import Lease
from muster_tainter.pause import PauseMap, describe_pause

LEADERS, PAUSE = "leaders", "pause"
LEASES = {TAINTER: "muster-tainter", OPERATOR: "muster-operator"}
FRESH_S = 20.0  # renewed every two seconds: whose clock agrees so far is believed
LASTS_S = 12.0  # a Lease lasts ten: whose clock is off is looked at for so long


@dataclass(frozen=True)
class ObservedLease:
    """A Lease. moved: it was renewed while we looked, which proves a leader whatever its clock says."""

    lease: Lease
    moved: bool = False

    @property
    def renewed(self) -> float:
        return seconds(self.lease.spec.renew_time or "")


def is_fresh(lease: Lease, now: float) -> bool:
    """Needs no second look. now: by the API server's clock."""
    return not lease.spec.holder_identity or abs(now - ObservedLease(lease).renewed) <= FRESH_S


def judge(
    parts: Sequence[InstalledPart], leases: Mapping[str, ObservedLease | ReadFailure | None], now: float
) -> list[DoctorFinding]:
    """leases: by kind of part. now: by the API server's clock."""
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
            found.append(DoctorFinding(LEADERS, Verdict.FAIL, f"no {part.kind} has ever led: there is no {name}", mend))
        elif not (holder := held.lease.spec.holder_identity):
            found.append(DoctorFinding(LEADERS, Verdict.FAIL, f"no {part.kind} leads: {name} is nobody's", mend))
        elif held.moved:
            skew = held.renewed - now
            what = f"{part.kind} {holder} leads, and its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
            found.append(DoctorFinding(LEADERS, Verdict.WARN, what, "chronyc tracking on its node"))
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
    what = f"{describe_pause(pause)}{ago}: nothing new is tainted, drained or repaired"
    return [DoctorFinding(PAUSE, Verdict.WARN, what, "muster resume")]
