"""Valid parts of a policy that are probably mistakes: rules that never match, budgets that allow no taint."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from itertools import combinations

from muster_checks.base.unknown_names import explain_unknown
from muster_checks.base.vocabulary import FaultClass
from muster_tainter.policy.match import Match
from muster_tainter.policy.needed_rights import Allow, NeededRight, needed_rights
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.recovery import SOURCE_CHECKS, Proof
from muster_tainter.policy.rules import CloseOn, Policy, Rule
from muster_tainter.policy.sections.heavy_checks import AtOnce


def find_warnings(policy: Policy, checks: Collection[str]) -> Iterator[str]:
    """One line each, beginning with the path in the policy. checks: all known names."""
    for number, rule in enumerate(policy.rules):
        where = f"rules[{number}] ({rule.name})"
        over = find_shadowing(rule, policy.rules[:number])
        if over:
            yield f"{where}: never matches: earlier rules ({', '.join(over)}) match all of its findings"
        for glob in rule.match.check:
            if not any(fnmatchcase(name, glob) for name in (*checks, *SOURCE_CHECKS)):
                yield f"{where}.match.check: {glob!r}: matches no check"
        proof = rule.proof or Proof()
        never = "its faults are never verified"
        for key, names, effect in (("checks", proof.checks, never), ("ifInstalled", proof.if_installed, "no effect")):
            for name in names:
                if name not in checks:
                    unknown = explain_unknown("check", name, checks)
                    yield f"{where}.proof.{key}: {effect}: {unknown}"
        if rule.opens and rule.close_on == (CloseOn.PROOF,) and rule.proof is None and _has_no_proof(rule):
            yield f"{where}.closeOn: only proof, but the rule has no verification: only a person can close its faults"
    for number, pool in enumerate(policy.pools):
        yield from _of_pool(f"pools[{number}] ({pool.name})", pool, checks)
    if not policy.rules:
        yield "rules: empty: the policy does nothing"


def _has_no_proof(rule: Rule) -> bool:
    return all(rule.proof_of(check, FaultClass.RESET) is None for check in rule.match.check)


def _of_pool(where: str, pool: Pool, checks: Collection[str]) -> Iterator[str]:
    budget = pool.budget
    shares = (("tainted", budget.tainted), ("perDomain", budget.per_domain))
    for name, share in (*shares, ("rate.nodes", budget.rate.nodes if budget.rate is not None else None)):
        if share is not None and share.of(100) == 0:
            yield f"{where}.budget.{name}: {share}: no node of the pool is ever tainted"
    if budget.healthy_per_domain == AtOnce(percent=100):
        yield f"{where}.budget.healthyPerDomain: 100%: no node of the pool is ever tainted"
    for key, names in (("preFlight", pool.testing.pre_flight), ("postFlight", pool.testing.post_flight)):
        for name in names:
            if name not in checks:
                yield f"{where}.testing.{key}: {explain_unknown('check', name, checks)}"


def find_notes(policy: Policy) -> Iterator[str]:
    """Parts that may well be intended."""
    if not policy.pools:
        yield "pools: empty: no budget limits how many nodes are tainted"
    for number, pool in enumerate(policy.pools):
        where = f"pools[{number}] ({pool.name})"
        budget = pool.budget
        if not any((budget.tainted, budget.per_domain, budget.healthy_per_domain, budget.rate)):
            yield f"{where}: no budget: all nodes of the pool may be tainted"
        if pool.domain is None and (budget.per_domain is not None or budget.healthy_per_domain is not None):
            yield f"{where}.domain: not set: the whole pool is one domain"
    if policy.devices.quarantine == "rules" and not any(
        pool.budget.devices or pool.budget.devices_per_domain for pool in policy.pools
    ):
        yield "devices.quarantine: no pool has a budget of devices: any number of them may be kept out of use"
    for (number, pool), (other_number, other) in combinations(enumerate(policy.pools), 2):
        if may_overlap(pool, other):
            yield (
                f"pools[{number}] ({pool.name}) and pools[{other_number}] ({other.name}) may select the same node: "
                f"both budgets apply to it; testing, drain and repair follow {pool.name}"
            )

    for needed in needed_rights(policy):
        yield f"{needed.where}: needs a right that the tainter may lack: {describe_right(needed)}"


def describe_right(needed: NeededRight) -> str:
    """What grants the right, for a person."""
    if needed.allow is Allow.OWN:
        at = f" in namespace {needed.namespace}" if needed.namespace else ""
        return f"bind its account to a role of yours that may get, create and delete {needed.kind}{at}"
    return f"put the policy into the chart value tainter.policy, or set tainter.allow.{needed.allow}=true"


def may_overlap(pool: Pool, other: Pool) -> bool:
    """Whether one node can match both selectors."""
    one, two = pool.selector.match_labels, other.selector.match_labels
    return all(two.get(key, value) == value for key, value in one.items())


def find_shadowing(rule: Rule, before: tuple[Rule, ...]) -> list[str]:
    """Earlier rules that together match all findings of ``rule``; empty if the rule may match something."""
    match = rule.match
    names: list[str] = []
    for verdict in match.verdict:
        for asks in match.fault_class or tuple(FaultClass):
            taker = next((each.name for each in before if _takes(each.match, match, verdict, asks)), None)
            if taker is None:
                return []
            names.append(taker)
    return list(dict.fromkeys(names))


def _takes(one: Match, other: Match, verdict: str, asks: FaultClass) -> bool:
    """Whether ``one`` matches all findings of this verdict and class that ``other`` matches."""
    if verdict not in one.verdict or (one.fault_class is not None and asks not in one.fault_class):
        return False
    if one.correlated is not None and (other.correlated is None or other.correlated < one.correlated):
        return False
    if one.solo and not other.solo:
        return False
    pairs = ((one.check, other.check), (one.component, other.component), (one.reason, other.reason))
    return all(all(any(_wider(glob, narrow) for glob in wide) for narrow in narrows) for wide, narrows in pairs)


def _wider(glob: str, other: str) -> bool:
    """Whether ``glob`` certainly matches all that ``other`` matches: it is equal, ``*``, or a prefix pattern."""
    if glob in ("*", other):
        return True
    if not any(sign in other for sign in "*?["):
        return fnmatchcase(other, glob)
    stem = glob.removesuffix("*")
    return glob.endswith("*") and not any(sign in stem for sign in "*?[") and other.startswith(stem)
