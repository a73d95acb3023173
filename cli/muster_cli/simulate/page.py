"""The result of `muster simulate` as one HTML page with plots, which needs no network and no script."""

from collections.abc import Iterator
from functools import partial
from html import escape
from importlib.resources import files

from muster_cli.report.quantities import plural
from muster_cli.simulate import charts
from muster_cli.simulate.report import Comparison, judged, judgements, notes, show
from muster_kube.api.times import rfc3339_whole
from muster_tainter.simulation.comparison import GOODPUT, INTERRUPTIONS, KEPT_OUT, MEASURES, estimate
from muster_tainter.simulation.ledger import Cause

OF_RECORDED_FAULTS = (
    "A recorded fault happens here although its node is held back. In truth a node without load may not fail.",
    "Two tickets within an hour may be one fault that was recorded twice. Here they are two.",
)
UNKNOWABLE = (
    "A policy changes what people do: who trusts it repairs later, and who does not clears by hand.",
    "Nodes are drawn one by one, or by failure domain. What hits the whole fleet at once is as rare as in the data.",
    "The jobs are those of the fleet file. Another mix of sizes has another goodput under the same policy.",
)

COMPARED = "Policies are compared fleet by fleet, so they can differ for certain although their 95 % intervals overlap."


def make_page(comparison: Comparison) -> str:
    style = files("muster_cli.simulate").joinpath("page.css").read_text("utf-8")
    title = "Muster: " + " and ".join(comparison.names)
    body = "\n".join(_parts(comparison))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _parts(comparison: Comparison) -> Iterator[str]:
    scenario, first = comparison.scenario, comparison.first(0)
    days = (scenario.end - scenario.begin) / 86_400
    several = len(comparison.names) > 1
    what = "these policies cost, and what would they save" if several else "this policy cost, and what would it save"
    yield f"<h1>What would {what}?</h1>"
    yield (
        f'<p class="soft">{plural(first.nodes, "node")} with {first.devices:,} accelerators, {days:g} days from '
        f"{rfc3339_whole(scenario.begin)[:10]}, {plural(first.tally.faults, 'fault')}, seed {scenario.seed}. "
        "Simulated with the tainter's own decisions.</p>"
    )
    yield f'<div class="tiles">{"".join(_tiles(comparison))}</div>'
    answers = list(judgements(comparison))
    if answers:
        lines = (
            f'<li class="{"sure" if each.difference.tells_apart else "unsure"}">{escape(judged(each))}</li>'
            for each in answers
        )
        yield f'<section><h2>Answers</h2><ul class="answers">{"".join(lines)}</ul></section>'
    yield from _plots(comparison)
    yield _table(comparison)
    recorded = OF_RECORDED_FAULTS if scenario.fleet.faults is None else ()
    unknown = "".join(f"<li>{escape(line)}</li>" for line in (*notes(comparison), *recorded, *UNKNOWABLE))
    yield f'<section><h2>How to read it, and what it cannot know</h2><ul class="answers soft">{unknown}</ul></section>'


def _tiles(comparison: Comparison) -> Iterator[str]:
    for policy, name in enumerate(comparison.names):
        first = comparison.first(policy)
        yield (
            f'<div class="tile"><span class="soft">{escape(name)}</span><b>{100 * first.goodput:.2f}% goodput</b>'
            f"{plural(first.interruptions, 'interruption')}, at most {first.most_out:,} accelerators out</div>"
        )


def _plots(comparison: Comparison) -> Iterator[str]:
    names = comparison.names
    found = {measure: [estimate(each, measure) for each in comparison.outcomes] for measure in (GOODPUT, INTERRUPTIONS)}
    bars = []
    for policy, name in enumerate(names):
        first = comparison.first(policy)
        bars.append(charts.Bar(name, {cause: 100 * first.hours[Cause(cause)] / first.total_h for cause in charts.LOST}))
    lost = charts.both(partial(charts.lost_hours, bars))
    yield (
        '<section><h2>Where the other accelerator-hours went</h2><p class="soft">Share of all accelerator-hours of the '
        f'fleet that was no goodput</p><ul class="legend">{charts.legend(bars)}</ul>{lost}</section>'
    )
    compared = f" {COMPARED}" if len(names) > 1 else ""
    for measure, title, text in (
        (GOODPUT, "Goodput", f"Share of all accelerator-hours whose work was kept, with its 95 % interval.{compared}"),
        (INTERRUPTIONS, "Interruptions of jobs", "By faults and by drains, with their 95 % interval"),
    ):
        plot = charts.both(partial(charts.intervals, names, found[measure], measure, title))
        yield f'<section><h2>{title}</h2><p class="soft">{text}</p>{plot}</section>'
    if len(names) > 1:
        points = [
            charts.Point(name, estimate(outcomes, KEPT_OUT), up)
            for name, outcomes, up in zip(names, comparison.outcomes, found[GOODPUT], strict=True)
        ]
        yield (
            '<section><h2>Goodput against capacity kept out</h2><p class="soft">Up and to the left is better</p>'
            f"{charts.both(partial(charts.trade, points))}</section>"
        )
    scenario = comparison.scenario
    labels = [rfc3339_whole(at)[:10] for at in (scenario.begin, (scenario.begin + scenario.end) / 2, scenario.end)]
    series = [comparison.first(policy).out_share for policy in range(len(names))]
    key = "".join(f'<li><i class="l-{place % 6}"></i>{escape(name)}</li>' for place, name in enumerate(names))
    out = charts.both(partial(charts.over_time, names, series, labels))
    yield (
        '<section><h2>Out of use over time</h2><p class="soft">Share of accelerators that were broken, tested or held'
        f'</p><ul class="legend">{key}</ul>{out}</section>'
    )


def _table(comparison: Comparison) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in comparison.names)
    rows = []
    for measure in MEASURES:
        if any(measure.of(outcomes[0]) for outcomes in comparison.outcomes):
            cells = "".join(
                f"<td>{_cell(show(estimate(outcomes, measure), measure))}</td>" for outcomes in comparison.outcomes
            )
            rows.append(f"<tr><td>{escape(measure.title)}</td>{cells}</tr>")
    return (
        f'<section><h2>All figures</h2><p class="soft">Hours (h) are accelerator-hours, except the mean time</p>'
        f'<div class="wide"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div></section>'
    )


def _cell(text: str) -> str:
    value, _, interval = text.partition(" (")
    return f"{value}<small>{interval.rstrip(')')}</small>" if interval else value
