"""One node in full as text: the report of its agent, its requests, and the faults that the tainter tracks. Pure."""

from collections.abc import Iterator
from itertools import zip_longest

from muster_checks.base.vocabulary import severity, shorten
from muster_cli.cluster.node_snapshot import NodeState
from muster_cli.report.fleet.rows import NodeRow, parse_verdict
from muster_cli.report.quantities import age
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth, ReportedCheck, ReportedFinding


def format_node(state: NodeState, row: NodeRow, now: float) -> list[str]:
    """``now``: seconds since the epoch."""
    return [_clean(line) for line in _lines(state, row, now)]


def _lines(state: NodeState, row: NodeRow, now: float) -> Iterator[str]:
    verdict = row.verdict.value if row.verdict else "not watched"
    since = f" for {age(now - seconds(row.since))}" if row.since else ""
    yield f"{row.node}  {verdict}{since}{'  ' + row.message if row.message else ''}"
    yield f"taints    {', '.join(row.taints) or 'none'}"
    devices = [f"{', '.join(row.quarantined)} kept out of use alone"] if row.quarantined else []
    devices += [f"{taint} by its driver" for taint in row.driver_taints]
    for label, text in zip_longest(["devices"], devices, fillvalue="") if devices else ():
        yield f"{label:<9} {text}"
    if row.role is not None:
        yield f"role      {row.role}{f', since {row.role.since}' if row.role.since else ''}"
    if row.withheld:
        yield f"withheld  {row.withheld}"
    yield from _faults(state, now)
    health = state.health
    if health is None:
        return
    yield from _agent(health, row, now)
    yield from _requests(health, now)
    checks = sorted(health.status.checks, key=lambda check: (-severity(parse_verdict(check.verdict)), check.name))
    width = max((len(check.name) for check in checks), default=0)
    if checks:
        yield ""
    for check in checks:
        yield from _check(check, width, now)


def _agent(health: NodeHealth, row: NodeRow, now: float) -> Iterator[str]:
    status = health.status
    if not status.verdict:
        return
    reported = f", last report {_ago(status.observed_at, now)}" if status.observed_at else ""
    yield f"agent     {status.agent.version or 'none'} (pod {status.agent.pod_uid or 'unknown'}){reported}"
    yield f"boot      {status.boot_id or 'not known: the agent has not finished its first pass'}"
    yield f"work      {row.state}{f' (since {status.idle_since})' if status.idle_since and not row.testing else ''}"
    if status.due:
        yield f"due       {', '.join(status.due)}"


def _requests(health: NodeHealth, now: float) -> Iterator[str]:
    answered = {answer.id for answer in health.status.answers}
    for request in health.spec.requests:
        if request.id not in answered:
            by = f" by {request.by}" if request.by else ""
            until = f", until {request.expires}" if request.expires else ""
            force = ", forced" if request.force else ""
            yield f"request   {request.id}: {', '.join(request.checks)}{by}{until}{force}"
    for answer in health.status.answers:
        done = f"{answer.passes} of {answer.runs} passed"
        when = _ago(answer.finished, now) if answer.finished else "running"
        why = f": {answer.reason} {answer.message}".rstrip() if answer.reason else ""
        yield f"answer    {answer.id}: {answer.verdict}, {done}, {when}{why}"
    for clear in health.spec.clear:
        by = f" by {clear.by}" if clear.by else ""
        yield f"cleared   {clear.check} {clear.component} up to occurrence {clear.occurrence}{by} {clear.at}".rstrip()


def _faults(state: NodeState, now: float) -> Iterator[str]:
    for fault in state.memory.open:
        asks = f", class {fault.fault_class}" if fault.fault_class else ""
        more = f" ({fault.rest} faults)" if fault.rest else ""
        since = f", open {_ago(fault.since, now)}" if fault.since else ""
        yield f"fault     {fault.check} {fault.component} {fault.reason}{more}{asks}{since}, rule {fault.rule or '-'}"
    for closed in state.memory.closed:
        yield (
            f"closed    {closed.check} {closed.component} {closed.reason} {_ago(closed.closed_at, now)}, "
            f"by {closed.how or '-'}{f' ({closed.by})' if closed.by else ''}"
        )


def _check(check: ReportedCheck, width: int, now: float) -> Iterator[str]:
    since = f"for {age(now - seconds(check.last_change))}" if check.last_change else ""
    text = "" if check.findings else f"{check.reason}: {check.message}" if check.message else check.reason
    yield f"{check.name:<{width}}  {check.verdict:<7}  {since:<8}  {text}"
    for finding in check.findings:
        yield from _finding(finding, now)
    if check.more_findings:
        yield f"    and {check.more_findings} more findings"
    for over in check.cleared:
        how = f"{_ago(over.at, now)}, by {over.how} (occurrence {over.occurrence})"
        yield f"    cleared: {over.component} {over.reason}, {how}"


def _finding(finding: ReportedFinding, now: float) -> Iterator[str]:
    asks = f" (class {finding.fault_class})" if finding.fault_class else ""
    yield f"    {finding.verdict:<7}  {finding.component} {finding.reason}{asks}: {finding.message}"
    times = f"{finding.count} times, " if finding.count > 1 else ""
    origin = ", written from user space" if finding.origin == "user" else ""
    seen = f"first seen {_ago(finding.first_seen, now)}, " if finding.first_seen else ""
    yield f"             {times}{seen}occurrence {finding.occurrence}{origin}"
    figures = [
        f"{m.name} {m.value:g}{' ' + m.unit if m.unit else ''}"
        + (f" (limit {m.threshold:g})" if m.threshold is not None else "")
        for m in finding.measurements
    ]
    if figures:
        yield f"             {', '.join(figures)}"


def _ago(text: str, now: float) -> str:
    at = seconds(text)
    return f"{age(now - at)} ago" if at else "at an unknown time"


def _clean(line: str) -> str:
    """Removes control characters, as anyone may have edited the objects."""
    return shorten(line, 4096).rstrip()
