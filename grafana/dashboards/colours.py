"""Colours, and from which value on a number has which."""

from collections.abc import Sequence

# as on the tainter's fleet page, where each state has been tried on colour-blind eyes
FAIL, WARN, UNKNOWN, PASS, SKIP = "#ff5a52", "#ead54c", "#a7b4c4", "#5fbf92", "#55636f"
QUIET = "#27543f"  # a sound number's background: what is wrong has to stand out
WITHHELD, HELD, PLAIN = "#ffb224", "#58a9ff", "#7db8ff"
COLOURS = {
    "FAIL": FAIL, "WARN": WARN, "UNKNOWN": UNKNOWN, "PASS": PASS, "SKIP": SKIP,
    "fail": FAIL, "warn": WARN, "unknown": UNKNOWN, "pass": PASS, "none": SKIP,
}  # fmt: skip
# of a query that gives a verdict as a number, the worst the highest
VERDICTS = {4: ("FAIL", FAIL), 3: ("WARN", WARN), 2: ("UNKNOWN", UNKNOWN), 1: ("PASS", PASS), 0: ("SKIP", SKIP)}

Steps = Sequence[tuple[float | None, str]]  # from a value on, a colour; None: from the beginning
NEUTRAL: Steps = ((None, PLAIN),)
JUST_1: Steps = ((None, FAIL), (1, PASS), (2, FAIL))


def warns_at(value: float, fails: float | None = None) -> Steps:
    return ((None, PASS), (value, WARN), *(((fails, FAIL),) if fails is not None else ()))


def from_1(colour: str, below: str = PASS) -> Steps:
    """Of a number that is 0 as a rule."""
    return ((None, below), (1, colour))
