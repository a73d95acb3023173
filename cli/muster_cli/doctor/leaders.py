"""Whether somebody leads, and whether the brake is on. Pure."""

from collections.abc import Mapping, Sequence

from muster_checks.vocabulary import Verdict
from muster_cli.doctor.facts import LeaseFacts
from muster_cli.doctor.findings import Finding, Unseen, unseen
from muster_cli.doctor.parts import OPERATOR, TAINTER, Part
from muster_cli.fleet_answer import age
from muster_tainter.pausing import PauseMap, describe

LEADERS, PAUSE = "leaders", "pause"
LEASES = {TAINTER: "muster-tainter", OPERATOR: "muster-operator"}
OLD_S = 60.0  # renewed every two seconds, given up after ten


def judge(parts: Sequence[Part], leases: Mapping[str, LeaseFacts | Unseen | None], now: float) -> list[Finding]:
    """leases: by kind of part. now: by the API server's clock."""
    found: list[Finding] = []
    leading: list[str] = []
    for part in parts:
        if part.kind not in LEASES:
            continue
        lease = leases.get(part.kind)
        name = f"Lease {part.namespace}/{LEASES[part.kind]}"
        mend = f"kubectl -n {part.namespace} logs -l app=muster-{part.kind} --tail=50"
        if isinstance(lease, Unseen):
            found += unseen(LEADERS, lease)
        elif lease is None:
            found.append(Finding(LEADERS, Verdict.FAIL, f"no {part.kind} has ever led: there is no {name}", mend))
        elif not lease.spec.holder_identity:
            found.append(Finding(LEADERS, Verdict.FAIL, f"no {part.kind} leads: {name} is nobody's", mend))
        elif now - lease.renewed > OLD_S:
            what = f"no {part.kind} leads: {name} was last renewed {age(now - lease.renewed)} ago"
            found.append(Finding(LEADERS, Verdict.FAIL, f"{what} by {lease.spec.holder_identity}", mend))
        else:
            leading.append(f"{part.kind}: {lease.spec.holder_identity}")
    if leading and not found:
        found.append(Finding(LEADERS, Verdict.PASS, "; ".join(leading)))
    return found


def judge_pause(pause: PauseMap | Unseen | None, now: float) -> list[Finding]:
    if isinstance(pause, Unseen):
        return unseen(PAUSE, pause)
    if pause is None:
        return [Finding(PAUSE, Verdict.PASS, "not paused")]
    ago = f" ({age(now - pause.since)} ago)" if pause.since else ""
    what = f"{describe(pause)}{ago}: nothing new is tainted, drained or repaired"
    return [Finding(PAUSE, Verdict.WARN, what, "muster resume")]
