"""Reads a line of a job's log that reports the time of one training step. Pure functions.

    muster_step{rank="3",step="1200",seconds="0.412"}

``job``, ``gpu``, ``stage`` and ``work`` may follow. A program that prints its own format needs a pattern (RE2) with
groups of these names. A tenant writes the line, so every value has limits, and a line that breaks them is malformed.
"""

import math
import re
from collections.abc import Mapping

import msgspec

MARK = b"muster_step{"
GROUPS = ("rank", "step", "seconds")  # that a line needs
OPTIONAL = ("job", "gpu", "stage", "work")
LINE_BYTES = 1024
RANK_LIMIT = 1 << 20
STEP_LIMIT = 1 << 53  # a float counts that far
SECONDS_LIMITS = 1e-9, 1e9  # as in a file of step times (docs/in-flight.md)
WORK_LIMITS = 1e-9, 1e18  # as there
JOB_LIMIT = 253
TEXT_LIMIT = 63  # of a GPU, and of a pipeline stage

_LABEL = re.compile(r'\s*([a-z]{1,16})\s*=\s*"([^"\\\n]{0,253})"\s*(?:,|$)')
_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?", re.ASCII)
# the letters of names that Kubernetes generates (k8s.io/apimachinery, util/rand)
_GENERATED = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
_INDEX = re.compile(r"-[0-9]{1,6}$")


class MalformedStep(ValueError):
    """The line is meant to report a step, but does not."""


class StepLine(msgspec.Struct, frozen=True):
    """step: the one that was completed; seconds, work: mean of the steps since the last line; job, gpu, stage: empty if
    not given; work: in the program's own unit, None if not given"""

    rank: int
    step: int
    seconds: float
    job: str = ""
    gpu: str = ""
    stage: str = ""
    work: float | None = None


def parse_step(text: str) -> StepLine:
    """``text``: the line from ``muster_step{`` on. Raises MalformedStep."""
    inner, closed, _ = text[:LINE_BYTES].removeprefix(MARK.decode()).partition("}")
    if not closed:
        raise MalformedStep("no closing brace")
    labels: dict[str, str] = {}
    at = 0
    while at < len(inner):
        found = _LABEL.match(inner, at)
        if found is None or found[1] in labels:
            raise MalformedStep('expected each label once, as NAME="VALUE"')
        labels[found[1]] = found[2]
        at = found.end()
    return read_step(labels)


def read_step(values: Mapping[str, str]) -> StepLine:
    """Raises MalformedStep."""
    for name in GROUPS:
        if name not in values:
            raise MalformedStep(f"no {name}")
    seconds = _amount("seconds", values["seconds"], SECONDS_LIMITS)
    job, gpu, stage, done = (values.get(name) or "" for name in OPTIONAL)
    if job and not _WORD.fullmatch(job):
        raise MalformedStep("job: expected letters, digits, - . and _")
    for name, text in (("gpu", gpu), ("stage", stage)):
        if not text.isprintable() or len(text) > TEXT_LIMIT:
            raise MalformedStep(f"{name}: expected printable text, {TEXT_LIMIT} characters at most")
    rank = _number("rank", values["rank"], RANK_LIMIT)
    work = _amount("work", done, WORK_LIMITS) if done else None
    return StepLine(rank, _number("step", values["step"], STEP_LIMIT), seconds, job, gpu, stage, work)


def _number(name: str, text: str, limit: int) -> int:
    if not _DIGITS.fullmatch(text) or int(text) >= limit:
        raise MalformedStep(f"{name}: expected a whole number below {limit}")
    return int(text)


def _amount(name: str, text: str, limits: tuple[float, float]) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    least, most = limits
    if not least <= amount <= most:
        raise MalformedStep(f"{name}: expected a number from {least:g} to {most:g}")
    return amount


def job_of_pod(pod: str) -> str:
    """The job by the name of its pod, for a line that names none: ``train`` of ``train-3-x7k2p`` and of ``train-3``."""
    return _INDEX.sub("", _GENERATED.sub("", pod)) or pod
