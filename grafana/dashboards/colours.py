"""Colours, and the values from which they apply."""

from collections.abc import Sequence

# the colours of the fleet page, which are distinguishable for colour-blind users
FAIL, WARN, UNKNOWN, PASS, SKIP = "#ff5a52", "#ead54c", "#a7b4c4", "#5fbf92", "#55636f"
QUIET = "#27543f"  # background of a healthy value, so that others stand out
WITHHELD, HELD, PLAIN = "#ffb224", "#58a9ff", "#7db8ff"
COLOURS = {
    "FAIL": FAIL, "WARN": WARN, "UNKNOWN": UNKNOWN, "PASS": PASS, "SKIP": SKIP,
    "fail": FAIL, "warn": WARN, "unknown": UNKNOWN, "pass": PASS, "none": SKIP,
}  # fmt: skip
# for queries that return a verdict as a number; the worst is the highest
VERDICTS = {4: ("FAIL", FAIL), 3: ("WARN", WARN), 2: ("UNKNOWN", UNKNOWN), 1: ("PASS", PASS), 0: ("SKIP", SKIP)}

Steps = Sequence[tuple[float | None, str]]  # a colour from this value on; None: from the start
NEUTRAL: Steps = ((None, PLAIN),)
JUST_1: Steps = ((None, FAIL), (1, PASS), (2, FAIL))


def warns_at(value: float, fails: float | None = None) -> Steps:
    return ((None, PASS), (value, WARN), *(((fails, FAIL),) if fails is not None else ()))


def from_1(colour: str, below: str = PASS) -> Steps:
    """For a value that is normally 0."""
    return ((None, below), (1, colour))
