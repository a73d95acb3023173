"""What a policy does with each possible finding: rows of the kernel-log catalogue, and the verdicts of each check."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from muster_checks.base.declaration import Check
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.dmesg import DMESG
from muster_checks.dmesg.catalogue.types import SXID_REASON, XID_REASON, Catalogue
from muster_tainter.faults.messages import format_taint
from muster_tainter.faults.record.node_record import as_our_taint
from muster_tainter.policy.rules import CloseOn, Policy, Rule

ANY = "(any other)"  # a reason that no catalogue declares
_TEMPLATE = re.compile(r"\{[^{}]*\}")
_LITERAL = re.compile(r"[^*?\[\]]+")
_BDF = "0000:3b:00.0"


@dataclass(frozen=True)
class PolicyRow:
    """A possible finding, and the rule that applies. rule: None if no rule matches."""

    check: str
    component: str
    reason: str
    verdict: Verdict
    fault_class: str
    rule: Rule | None

    @property
    def action(self) -> str:
        return "nothing" if self.rule is None else self.rule.action

    def document(self, policy: Policy) -> dict[str, Any]:
        row: dict[str, Any] = {
            "check": self.check,
            "component": self.component,
            "reason": "*" if self.reason == ANY else self.reason,
            "verdict": self.verdict.value,
            "class": self.fault_class,
            "rule": "" if self.rule is None else self.rule.name,
            "action": self.action,
        }
        return row if self.rule is None or not self.rule.opens else row | rule_outcome(self.rule, self, policy)


def rule_outcome(rule: Rule, row: PolicyRow, policy: Policy) -> dict[str, Any]:
    """What a rule does for a fault that it opens. Times in seconds."""
    proof = rule.proof_of(row.check, row.fault_class)
    base = policy.hold_down.base if rule.hold_down is None else rule.hold_down
    closes = [way.value for way in rule.closes_on(row.fault_class) if way is not CloseOn.PROOF or proof is not None]
    return {
        "taint": "" if rule.node_taint is None else format_taint(as_our_taint(rule.node_taint)),
        "for": policy.wait_of(rule),
        "closedBy": [*closes, "person"],
        "proof": {
            "checks": list(proof.checks),
            "ifInstalled": list(proof.optional),
            "passes": proof.proof.passes,
            "interval": proof.proof.interval,
            "afterBoot": proof.new_boot,
        }
        if proof is not None
        else None,
        "holdDown": base,
    }


def policy_rows(policy: Policy, catalogue: Catalogue, checks: Mapping[str, Check]) -> list[PolicyRow]:
    found = [*_kernel(catalogue), *_others(policy, checks)]
    return [
        PolicyRow(check, component, reason, verdict, asks, policy.rule_for(check, component, reason, verdict, asks))
        for check, component, reason, verdict, asks in dict.fromkeys(found)
    ]


_Finding = tuple[str, str, str, Verdict, str]


def _kernel(catalogue: Catalogue) -> Iterator[_Finding]:
    gpu, switch = f"gpu/{_BDF}", f"nvswitch/{_BDF}"
    for code, xid in sorted(catalogue.xids.items()):
        for verdict, asks in _of_xid(xid.decode, catalogue) or [(xid.verdict, xid.fault_class.value)]:
            if verdict is not Verdict.PASS:
                yield DMESG.name, gpu, f"{XID_REASON}{code}", verdict, asks
    for code, sxid in sorted(catalogue.sxids.items()):
        for verdict, asks in ((sxid.verdict, sxid.fault_class), (sxid.verdict_if_fatal, sxid.class_if_fatal)):
            if verdict is not Verdict.PASS:
                yield DMESG.name, switch, f"{SXID_REASON}{code}", verdict, asks.value
    for row in sorted(catalogue.rows, key=lambda row: row.name):
        if row.verdict is not Verdict.PASS:
            component = _TEMPLATE.sub(_BDF, row.component.replace("{kind}", "pci"))
            yield DMESG.name, component, row.name, row.verdict, row.fault_class.value


def _of_xid(decode: str, catalogue: Catalogue) -> list[tuple[Verdict, str]]:
    """Verdicts and classes that a decoded line may have; empty if the row of the code has them."""
    match decode:
        case "recovery":
            return [(each.verdict, each.fault_class.value) for each in catalogue.recoveries.values()]
        case "xid74":
            return [(bit.verdict, bit.fault_class.value) for bit in catalogue.link_bits]
        case "nvlink5":  # as in judge.py, for the actions of the table and for a line without a row
            return [
                (Verdict.FAIL, FaultClass.RESET.value),
                (Verdict.FAIL, FaultClass.CONTACT.value),
                (Verdict.WARN, FaultClass.RESTART_APP.value),
                (Verdict.WARN, ""),
            ]
    return []


def _others(policy: Policy, checks: Mapping[str, Check]) -> Iterator[_Finding]:
    """Checks do not declare reasons: each verdict and class once, and once for each reason that the policy names."""
    for name, check in sorted(checks.items()):
        if name == DMESG.name:
            continue
        own = (rule.match for rule in policy.rules if any(fnmatchcase(name, glob) for glob in rule.match.check))
        named = {glob for match in own for glob in match.reason if _LITERAL.fullmatch(glob)}
        for device in check.devices or ("host",):
            component = device if device == "host" else f"{device}/0"
            classes = [FaultClass.QUARANTINE] if device == "ipu" else [c for c in FaultClass if c != "quarantine"]
            for reason in (ANY, *sorted(named)):
                for asks in classes:
                    yield name, component, reason, Verdict.FAIL, asks.value
                yield name, component, reason, Verdict.WARN, ""
