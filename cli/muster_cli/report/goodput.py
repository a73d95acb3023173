"""The report of `muster goodput`, for people."""

from muster_cli.report.columns import print_table
from muster_cli.report.quantities import age, plural
from muster_kube.api.times import seconds
from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.report import By, Report, Sums

STALE_S = 180.0  # three writes are missing


def print_report(report: Report, now: float) -> None:
    """now: seconds since the epoch."""
    total = report.total
    share = "" if total.goodput is None else f", {total.goodput:.1%} of them goodput"
    print(f"{report.begin} to {report.end}: {hours(total.total)} accelerator-hours{share}, {hours(total.lost)} lost")
    if now - seconds(report.end) > STALE_S:
        print(f"The record is {age(now - seconds(report.end))} old: no tainter has written it since.")
    print()
    if report.by == By.CAUSE:
        _print_causes(total)
    else:
        _print_rows(report)
    if report.failures:
        print()
        _print_failures(report)
    if report.lemons:
        print()
        _print_lemons(report)
    print()
    for line in _notes(report):
        print(line)


def hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _print_causes(total: Sums) -> None:
    names = [cause for cause in Cause if total.work.get(cause) or total.nodes.get(cause)]
    rows = [
        (
            str(cause),
            hours(total.work.get(cause, 0.0)),
            hours(total.nodes.get(cause, 0.0)),
            f"{(total.work.get(cause, 0.0) + total.nodes.get(cause, 0.0)) / total.total:.1%}",
        )
        for cause in names
    ]
    print_table(("CAUSE", "PODS", "NODES", "SHARE"), rows)


def _print_rows(report: Report) -> None:
    rows = []
    for each in report.rows:
        sums = {cause: each.work.get(cause, 0.0) + each.nodes.get(cause, 0.0) for cause in Cause}
        worst = sorted((cause for cause in Cause if sums[cause] and _is_loss(cause)), key=lambda cause: -sums[cause])
        lost = ", ".join(f"{cause} {hours(sums[cause])}" for cause in worst[:4])
        rows.append(
            (
                each.name,
                hours(each.total),
                "" if each.goodput is None else f"{each.goodput:.1%}",
                hours(each.lost),
                lost,
            )
        )
    print_table((report.by.upper(), "HOURS", "GOODPUT", "LOST", "LOST TO"), rows)


def _is_loss(cause: Cause) -> bool:
    return cause not in (Cause.GOODPUT, Cause.OVERHEAD, Cause.IDLE, Cause.SPARE)


def _print_failures(report: Report) -> None:
    rows = [
        (
            each.pool,
            each.model,
            str(each.outages),
            _mean(each.mtbf),
            _mean(each.mttr),
            str(sum(each.interruptions.values())),
            _mean(each.mtbi),
        )
        for each in report.failures
    ]
    print_table(("POOL", "MODEL", "OUTAGES", "MTBF", "MTTR", "INTERRUPTIONS", "MTBI"), rows)


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{hours(value)} h"


def _print_lemons(report: Report) -> None:
    rows = [
        (
            each.node,
            hours(each.lost),
            str(each.outages),
            str(each.interruptions),
            f"{each.history[-1].at} {each.history[-1].what}",
        )
        for each in report.lemons
    ]
    print_table(("WORST NODES", "LOST", "OUTAGES", "INTERRUPTIONS", "LAST"), rows)


def _notes(report: Report) -> list[str]:
    notes = [
        f"Not recorded yet: {hours(report.at_risk)} accelerator-hours that pods hold (work since the last checkpoint, "
        "starts, and the last five minutes)."
    ]
    if report.total.through_peers:
        notes.append(
            f"Of the hours of pods, {hours(report.total.through_peers)} have the cause of another pod of their owner."
        )
    if report.unobserved:
        longest = max(each.seconds for each in report.unobserved)
        vanished = sum(each.vanished for each in report.unobserved)
        notes.append(
            f"The tainter started {plural(len(report.unobserved), 'time')}; at most {age(longest)} of a start was not "
            f"observed, and {hours(vanished)} accelerator-hours of pods that ended then count as unknown."
        )
    if report.uncounted_pods:
        notes.append(f"{plural(report.uncounted_pods, 'pod')} beyond the limit are not recorded.")
    return notes
