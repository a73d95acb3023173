"""Ranks over steps as SVG: how slow each rank is in each step against the median of all ranks."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from statistics import fmean, median

from muster_cli.stragglers.report import JobTimes
from muster_tainter.stragglers.verdict import STAGE, Verdict

COLUMNS_LIMIT, ROWS_LIMIT = 300, 128
WIDTH = 900
LEFT, TOP, RIGHT, BOTTOM = 210, 62, 20, 62
FONT = 12
# ratio to the median from which a colour is used; light to dark, so that it also reads in grey
COLOURS = ((0.0, "#f2f2f2"), (1.05, "#fde0a5"), (1.1, "#fdb863"), (1.2, "#e66101"), (1.5, "#b2182b"), (2.0, "#67001f"))


def plot(job: JobTimes, verdict: Verdict) -> str:
    """Blamed rows have bold labels and a frame around their slow steps. At most 128 rows: the blamed and a sample."""
    rows = _rows(job, verdict)
    ratios = _ratios(job, rows)
    height = max(4, min(22, 640 // len(rows)))
    cell = (WIDTH - LEFT - RIGHT) / len(ratios[0])
    total = TOP + height * len(rows) + BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" viewBox="0 0 {WIDTH} {total}" '
            f'font-family="sans-serif" font-size="{FONT}">',
            f'<rect width="{WIDTH}" height="{total}" fill="white"/>',
            _text(LEFT, 22, f"verdict: {verdict.kind}", 'font-size="16" font-weight="bold"'),
            _text(LEFT, 42, _subtitle(verdict)),
            *_cells(ratios, cell, height),
            *_labels(job, verdict, rows, height),
            *_frames(job, verdict, rows, height),
            *_axis(job, TOP + height * len(rows)),
            *_legend(TOP + height * len(rows) + 38),
            "</svg>\n",
        ]
    )


def _subtitle(verdict: Verdict) -> str:
    if not verdict.causes:
        return "time of each step against the median of all ranks"
    return "; ".join(f"{cause.kind}: steps take {cause.slowdown:.0%} longer" for cause in verdict.causes)


def _blamed_rows(job: JobTimes, verdict: Verdict) -> dict[int, list[range]]:
    """Row -> slow columns."""
    found: dict[int, list[range]] = {}
    for cause in verdict.causes:
        for blame in cause.blamed:
            rows: Sequence[int] = [blame.row]
            if cause.kind == STAGE:
                rows = list(job.times.rows_of_stages().values())[blame.row]
            for row in rows:
                found.setdefault(row, []).append(blame.columns(len(job.times.steps)))
    return found


def _rows(job: JobTimes, verdict: Verdict) -> list[int]:
    rows = list(range(len(job.times.ranks)))
    if len(rows) > ROWS_LIMIT:
        blamed = list(_blamed_rows(job, verdict))[: ROWS_LIMIT // 2]
        left = ROWS_LIMIT - len(blamed)
        rows = sorted({*blamed, *(number * len(rows) // left for number in range(left))})
    shown = set(rows)
    by_stage = job.times.rows_of_stages().values()  # a slow stage is a band
    return [row for stage in by_stage for row in stage if row in shown]


def _ratios(job: JobTimes, rows: Sequence[int]) -> list[list[float]]:
    """Of the rows: the mean ratio in each column of the picture."""
    medians = [median(column) for column in zip(*job.times.seconds, strict=True)]
    count = len(medians)
    columns = min(count, COLUMNS_LIMIT)
    ends = [number * count // columns for number in range(columns + 1)]
    return [
        [
            fmean(job.times.seconds[row][step] / medians[step] for step in range(begin, end))
            for begin, end in pairwise(ends)
        ]
        for row in rows
    ]


def _colour(ratio: float) -> str:
    return next(colour for least, colour in reversed(COLOURS) if ratio >= least)


def _cells(ratios: Sequence[Sequence[float]], cell: float, height: int) -> Iterator[str]:
    """Neighbours of one colour are one rectangle."""
    for number, row in enumerate(ratios):
        colours = [_colour(ratio) for ratio in row]
        first = 0
        for place in range(1, len(colours) + 1):
            if place == len(colours) or colours[place] != colours[first]:
                yield (
                    f'<rect x="{LEFT + first * cell:.1f}" y="{TOP + number * height}" '
                    f'width="{(place - first) * cell:.1f}" height="{height}" fill="{colours[first]}"/>'
                )
                first = place


def _labels(job: JobTimes, verdict: Verdict, rows: Sequence[int], height: int) -> Iterator[str]:
    """Of the blamed rows, and of others as far as there is room."""
    blamed = _blamed_rows(job, verdict)
    apart = math.ceil((FONT + 2) / height)
    taken: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: rows[number] not in blamed):
        if all(abs(number - other) >= apart for other in taken):
            taken.append(number)
            weight = 'text-anchor="end"' + (' font-weight="bold"' if rows[number] in blamed else "")
            label = job.label(rows[number]).replace("dp_rank", "dp")
            yield _text(LEFT - 8, TOP + (number + 0.5) * height + FONT / 3, label, weight)


def _frames(job: JobTimes, verdict: Verdict, rows: Sequence[int], height: int) -> Iterator[str]:
    step = (WIDTH - LEFT - RIGHT) / len(job.times.steps)
    for row, ranges in _blamed_rows(job, verdict).items():
        for columns in ranges if row in rows else ():
            yield (
                f'<rect x="{LEFT + columns.start * step:.1f}" y="{TOP + rows.index(row) * height}" '
                f'width="{len(columns) * step:.1f}" height="{height}" fill="none" stroke="black" stroke-width="1.5"/>'
            )


def _axis(job: JobTimes, bottom: int) -> Iterator[str]:
    """The first step, the last, and some between."""
    count = len(job.times.steps)
    for part in range(5):
        place = round(part * (count - 1) / 4)
        x = LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / count
        yield _text(x, bottom + 16, f"{'step ' if part == 0 else ''}{job.times.steps[place]}", 'text-anchor="middle"')


def _legend(y: int) -> Iterator[str]:
    yield _text(LEFT - 8, y + 10, "slower than the median by", 'text-anchor="end"')
    for number, (least, colour) in enumerate(COLOURS):
        x = LEFT + number * 105
        yield f'<rect x="{x}" y="{y}" width="14" height="12" fill="{colour}" stroke="#999" stroke-width="0.5"/>'
        yield _text(x + 20, y + 10, "less than 5%" if number == 0 else f"{least - 1:.0%} or more")


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
