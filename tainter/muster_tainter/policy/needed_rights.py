"""The rights that only some policies need: evictions, suspensions, objects of repairs, trials of volumes, rules for
devices. Pure.

With ``tainter.allow.*: auto`` the chart decides the same when it renders roles (helm/muster/templates/_tainter.tpl).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from muster_tainter.policy.repair import REPAIRED, Manifest
from muster_tainter.policy.rules import Policy

_PVC = "pvc"


class Allow(StrEnum):
    """A chart value below ``tainter.allow``. OWN: none: a person has to bind a role."""

    DRAIN = "drain"
    REPAIR_JOBS = "repairJobs"
    TRIALS = "trials"
    SUSPEND_JOBS = "suspendJobs"
    DEVICES = "devices"
    OWN = ""


@dataclass(frozen=True)
class NeededRight:
    """where: the path in the policy. api_version, kind: of the object of a repair. namespace: of that object; empty:
    the policy does not say, so the tainter's namespace for repairs."""

    where: str
    allow: Allow
    api_version: str = ""
    kind: str = ""
    namespace: str = ""


def needed_rights(policy: Policy, repair_namespace: str = "") -> Iterator[NeededRight]:
    """repair_namespace: in which the chart allows Jobs; empty: not known."""
    for number, rule in enumerate(policy.rules):
        where = f"rules[{number}] ({rule.name})"
        if rule.action == "drain":
            yield NeededRight(f"{where}.action", Allow.DRAIN)
        if _PVC in rule.match.check:
            yield NeededRight(f"{where}.match.check", Allow.TRIALS)
        if rule.proof is not None and _PVC in (*rule.proof.checks, *rule.proof.if_installed):
            yield NeededRight(f"{where}.proof.checks", Allow.TRIALS)
    if policy.sources.step_times is not None and policy.sources.step_times.evict:
        yield NeededRight("sources.stepTimes.evict", Allow.DRAIN)
    if policy.sources.step_times is not None and "Job" in policy.sources.step_times.suspend:
        yield NeededRight("sources.stepTimes.suspend", Allow.SUSPEND_JOBS)
    if policy.devices.quarantine != "off":
        yield NeededRight("devices.quarantine", Allow.DEVICES)
    for number, pool in enumerate(policy.pools):
        where = f"pools[{number}] ({pool.name})"
        if pool.drain is not None and pool.drain.when != "completion":
            yield NeededRight(f"{where}.drain", Allow.DRAIN)
        for key, checks in (("preFlight", pool.testing.pre_flight), ("postFlight", pool.testing.post_flight)):
            if _PVC in checks:
                yield NeededRight(f"{where}.testing.{key}", Allow.TRIALS)
        for name in REPAIRED if pool.repair is not None else ():
            remedy = pool.repair.of(name) if pool.repair is not None else None
            if remedy is not None and remedy.job is not None:
                namespace = _namespace(remedy.job.template)
                own = Allow.REPAIR_JOBS if namespace in ("", repair_namespace) else Allow.OWN
                yield NeededRight(f"{where}.repair.{name}.job", own, "batch/v1", "Job", namespace)
            elif remedy is not None and remedy.create is not None:
                made = remedy.create.manifest
                version, kind = str(made["apiVersion"]), str(made["kind"])
                yield NeededRight(f"{where}.repair.{name}.create", Allow.OWN, version, kind, _namespace(made))


def _namespace(manifest: Manifest) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("namespace") or "") if isinstance(metadata, dict) else ""
