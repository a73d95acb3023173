"""Why a node is tainted, or is not: the chain of evidence, in lines for people. Pure."""

from muster_kube.nodehealth import Finding, NodeHealth
from muster_kube.objects import Node
from muster_tainter.desired import FAULTY_LABEL, MANAGED_LABEL, is_managed, show
from muster_tainter.health import read
from muster_tainter.memory import ANNOTATION, LOST_CHECK, Fault, Memory, Unreadable, decode, ours
from muster_tainter.policy import CloseOn, Policy
from muster_tainter.policyfile import load_policy
from muster_tainter.wanting import wanted

_WORDS = {
    CloseOn.BOOT: "a reboot after which the check no longer finds it",
    CloseOn.DRIVER: "the driver's own word that it is over",
    CloseOn.QUIET: "the check's quiet time without another sign",
    CloseOn.CLEAR: "a request to clear",
    CloseOn.PROOF: "a proof that is asked for and passes",
    CloseOn.SOURCE: "the word of whoever reported it",
}


def explain(node: Node, health: NodeHealth | None, memory: Memory, policy: Policy | None = None) -> list[str]:
    """Lines about ``node``. ``policy``: the one in force; by default the built-in one, which is said."""
    name = node.metadata.name
    assumed = policy is None
    policy = policy or load_policy(None)
    if not is_managed(node):
        return [f"{name} is left alone: label {MANAGED_LABEL}=false"]
    there = [taint for taint in node.spec.taints if ours(taint) in memory.ours]
    lines = [f"{name} is tainted: {', '.join(map(show, there))}" if there else f"{name} is not tainted by muster"]
    others = [taint for taint in node.spec.taints if taint not in there]
    if others:
        lines.append(f"  set by others: {', '.join(map(show, others))}")
    lines += _unreadable(node)
    report = read(health)
    if health is None:
        lines.append("  there is no NodeHealth: no agent can have reported")
    elif not report.known:
        lines.append(
            f"  its NodeHealth makes no sense: {report.error}" if report.error else "  no agent has reported yet"
        )
    for fault in memory.open:
        lines += _fault(fault, report.finding(fault.key), policy)
    if memory.open and assumed:
        lines.append("  (what closes faults is told by the built-in policy; the one in force may differ)")
    open_keys = {fault.key for fault in memory.open}
    closed = {entry.key: entry for entry in memory.closed}
    for key, finding in sorted((report.findings or {}).items()):
        if key in open_keys:
            continue
        entry = closed.get(key)
        lines.append(f"finding {' '.join(key)}: {finding.verdict}{_asks(finding.fault_class)}, no taint")
        lines += [f"  {line}" for line in _evidence(finding)]
        if entry is not None and entry.occurrence >= finding.occurrence:
            lines.append(f"  closed {entry.closed_at} ({entry.how}, {entry.by}) up to occurrence {entry.occurrence}")
    for entry in memory.closed:
        if entry.key not in open_keys:
            lines.append(
                f"closed {entry.closed_at}: {entry.check} {entry.component} {entry.reason} occurrence "
                f"{entry.occurrence}, by {entry.how} ({entry.by})"
            )
    if not memory.open and node.metadata.labels.get(FAULTY_LABEL):
        lines.append(f"  label {FAULTY_LABEL} is there without an open fault: the tainter will take it off")
    if report.known:
        lines.append(f"last report {health.status.observed_at if health else ''}: {report.verdict}, boot {report.boot}")
    return lines


def _unreadable(node: Node) -> list[str]:
    try:
        decode(node.metadata.annotations.get(ANNOTATION))
    except Unreadable as error:
        return [f"  annotation {ANNOTATION} cannot be read ({error}); the tainter will rebuild it"]
    return []


def _asks(fault_class: str) -> str:
    return f", asks for {fault_class}" if fault_class else ""


def _fault(fault: Fault, finding: Finding | None, policy: Policy) -> list[str]:
    if fault.rest:
        return [f"fault {fault.check}: {fault.rest} more than there is room for; a person or a clean boot closes them"]
    if fault.check == LOST_CHECK:
        return [f"fault {fault.component}: its reason is lost with the annotation; a person or a good boot closes it"]
    lines = [f"fault {fault.check} {fault.component} {fault.reason}: {fault.verdict}{_asks(fault.fault_class)}"]
    if finding is not None:
        lines += [f"  {line}" for line in _evidence(finding)]
    else:
        lines.append(f"  {fault.message}")
        lines.append("  no longer reported; that alone closes nothing")
    lines.append(f"  open since {fault.since}, occurrence {fault.occurrence}, seen in boot {fault.boot or 'unknown'}")
    want = wanted(fault, policy)
    lines.append(f"  rule {fault.rule}")
    possible = [way for way in want.close_on if way is not CloseOn.PROOF or want.proof is not None]
    ways = [_WORDS[way] for way in possible if way is not CloseOn.CLEAR]
    lines.append(f"  closed by: {'; '.join([*ways, 'a person (muster clear)'])}")
    return lines


def _evidence(finding: Finding) -> list[str]:
    origin = f" (written by {'user space' if finding.origin == 'user' else 'the kernel'})" if finding.origin else ""
    lines = [f"{finding.message}{origin}"]
    times = f"first seen {finding.first_seen}"
    if finding.last_seen and finding.last_seen != finding.first_seen:
        times += f", last {finding.last_seen}"
    lines.append(f"{times}, {finding.count} time{'' if finding.count == 1 else 's'}, occurrence {finding.occurrence}")
    for measured in finding.measurements:
        limit = f", threshold {measured.threshold:g}" if measured.threshold is not None else ""
        lines.append(f"{measured.name} {measured.value:g} {measured.unit}{limit}")
    return lines
