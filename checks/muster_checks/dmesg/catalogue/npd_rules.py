"""Converts rules of node-problem-detector's log monitors to catalogue rows; its files need no change.

A file (docs/plugins.md shows one) names its log (``plugin``: kmsg, journald or filelog), and its ``rules`` give the
meaning of lines. A ``temporary`` rule becomes a WARN, a ``permanent`` rule a FAIL without a class: the policy decides
what it does to the node. A pattern must end where the line ends. Differences from that program:

* ``lookback`` is not used: Muster continues where it stopped, and on the first run reads the log of the whole boot;
* there, a condition that is true stays true; here it ends with the next boot or when a person clears it;
* there, any other ``type`` counts as permanent but has no effect; here it is rejected;
* there, a rule without a pattern fires on every line; here it is rejected;
* a permanent rule over the kernel log does not fire for a message that is known to hold a user's text
  (message_text.py). A pattern may begin anywhere in a line, as there, so other text of a user may match: Muster warns.

Checked against its source: pkg/systemlogmonitor (config.go, log_buffer.go, log_monitor.go).
"""

import logging
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from muster_checks.base.npd_json import FileRefused, NpdForm, Reason, duration, first_error, read_document
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.dmesg.catalogue.match import Pattern
from muster_checks.dmesg.catalogue.row_file import check_size, count_instructions
from muster_checks.dmesg.catalogue.types import Catalogue, CatalogueError, PatternRow

_log = logging.getLogger(__name__)

INSTRUCTIONS_LIMIT = 8_000  # all files together; the shipped rows use less than half of 26,000
LINES_LIMIT = 100  # limit of bufferSize for patterns that span lines: each new line costs a scan of that many lines
KERNEL = "kernel"  # the identifier of kernel messages in the journal

# Matches patterns that may match a newline and so span lines. A false positive only costs time.
_SPANS = re.compile(
    r"""
    \^ | \n                              # the beginning of all lines; a negated class, which contains the newline
    | \\[nsDWAxCpPQ0-7]                  # \n, \s, \D, \W, \A, any byte by number, Unicode classes, quoted text
    | \\[aftvr]- | [\x00-\x1f]-          # a range of control characters
    | \[:(?:\^|space|cntrl|ascii)        # [[:space:]]
    | \(\?[imsU]*[sm]                    # (?s) and (?m)
    """,
    re.X,
)
_LAST_DOLLAR = re.compile(r"(?<!\\)((?:\\\\)*)\$$")


def reaches_over_lines(pattern: str) -> bool:
    """Whether a match of ``pattern`` (RE2) may depend on more than its last line. False is never wrong."""
    return _SPANS.search(pattern) is not None


DurationOrEmpty = Annotated[float, BeforeValidator(lambda given: 0.0 if given == "" else duration(given))]


class NpdCondition(NpdForm):
    type: Annotated[str, Field(min_length=1, max_length=200)]
    reason: str = ""
    message: str = ""


class NpdRule(NpdForm):
    type: Literal["temporary", "permanent"]
    condition: str = ""
    reason: Reason
    pattern: Annotated[str, Field(min_length=1, max_length=10_000)]
    suffix: Annotated[str, Field(alias="patternGeneratedMessageSuffix")] = ""

    @field_validator("pattern")
    @classmethod
    def _is_re2(cls, pattern: str) -> str:
        try:
            Pattern(f"(?:{pattern})")
        except ValueError as error:
            raise ValueError(f"{error}; expected RE2 syntax") from None
        return pattern


class LogMonitor(NpdForm):
    """A log monitor's file. ``plugin_config``: for journald ``source``; for filelog ``timestamp``, ``message`` and
    ``timestampFormat``."""

    plugin: Literal["kmsg", "journald", "filelog"]
    plugin_config: Annotated[dict[str, str], Field(alias="pluginConfig", default_factory=dict)]
    skip_list: Annotated[list[str], Field(alias="skipList", default_factory=list)]
    log_path: Annotated[str, Field(alias="logPath")] = ""
    lookback: DurationOrEmpty = 0.0
    delay: DurationOrEmpty = 0.0
    buffer_size: Annotated[int, Field(alias="bufferSize", ge=0)] = 10
    source: str = ""
    conditions: Annotated[list[NpdCondition], Field(default_factory=list)]
    rules: Annotated[list[NpdRule], Field(min_length=1, max_length=500)]

    @property
    def is_for_the_kernel_log(self) -> bool:
        return self.plugin == "kmsg" or (self.plugin == "journald" and self.plugin_config.get("source") == KERNEL)


def read_log_monitor(document: object) -> LogMonitor:
    """Raises FileRefused."""
    try:
        monitor = LogMonitor.model_validate(document)
    except ValidationError as error:
        raise FileRefused(first_error(error)) from None
    known = {condition.type for condition in monitor.conditions}
    for index, rule in enumerate(monitor.rules):
        if rule.type == "permanent" and rule.condition not in known:
            raise FileRefused(
                f'rules[{index}].condition: "{rule.condition}": a permanent rule needs a type from conditions; '
                f"expected one of: {', '.join(sorted(known)) or 'none'}"
            )
        if reaches_over_lines(rule.pattern) and monitor.buffer_size > LINES_LIMIT:
            raise FileRefused(
                f"bufferSize: {monitor.buffer_size}: expected at most {LINES_LIMIT}, because rules[{index}].pattern "
                f"may span all of them"
            )
    return monitor


def to_rows(monitor: LogMonitor, file: str) -> tuple[PatternRow, ...]:
    """One row for each rule. Raises FileRefused if the patterns exceed the limit for one scan."""
    rows = tuple(_row(monitor, rule, file) for rule in monitor.rules)
    check_instructions(rows)
    permanent = tuple(rule.reason for rule in monitor.rules if rule.type == "permanent")
    if permanent and monitor.is_for_the_kernel_log:
        _warn_of_user_text(file, permanent)
    return rows


@cache
def _warn_of_user_text(file: str, reasons: tuple[str, ...]) -> None:
    """Once for each file, however often it is read."""
    _log.warning(
        "%s: permanent rules match anywhere in a kernel message, also in text that a tenant chose: %s: "
        "prefer a row of the catalogue, which matches at the beginning",
        file,
        ", ".join(dict.fromkeys(reasons)),
    )


def check_instructions(rows: Iterable[PatternRow]) -> None:
    """Raises FileRefused."""
    total = count_instructions(rows)
    if total > INSTRUCTIONS_LIMIT:
        raise FileRefused(
            f"rules: the patterns, with those of earlier files, need {total} RE2 instructions; expected at most "
            f"{INSTRUCTIONS_LIMIT}"
        )


def _row(monitor: LogMonitor, rule: NpdRule, file: str) -> PatternRow:
    permanent = rule.type == "permanent"
    over_lines = reaches_over_lines(rule.pattern)
    message = f"{rule.condition}: {{line}}" if permanent else "{line}"
    return PatternRow(
        name=rule.reason,
        patterns=(rule.pattern if over_lines else _at_line_end(rule.pattern),),
        component="host",
        message=f"{message}; {rule.suffix}" if rule.suffix else message,
        verdict=Verdict.FAIL if permanent else Verdict.WARN,
        fault_class=FaultClass.NONE,
        description=f"{rule.type}{f' condition {rule.condition}' if permanent else ''}: {rule.pattern}",
        clears="boot" if permanent else "quiet",
        source=f"node-problem-detector {file}",
        lines=(monitor.buffer_size or 10) if over_lines else 0,
        anywhere=True,
        delay_s=monitor.delay,
    )


def _at_line_end(pattern: str) -> str:
    """node-problem-detector trims each line first; here the pattern allows for spaces at the end of the line."""
    return rf"(?:{_LAST_DOLLAR.sub(lambda found: found[1], pattern)})[ \t\r]*$"


def apply_json(catalogue: Catalogue, path: Path, *, others_too: bool = False) -> Catalogue:
    """``catalogue`` with the rules of a log monitor's file added after its own rows. Raises CatalogueError.

    others_too: ignore a file for another log and a file that is not a log monitor
    """
    try:
        document: Any = read_document(path)
        if others_too and not (isinstance(document, dict) and document.get("plugin") in ("kmsg", "journald")):
            return catalogue
        monitor = read_log_monitor(document)
        if monitor.is_for_the_kernel_log:
            joined = catalogue.with_rows(to_rows(monitor, path.name))
            check_size(path.name, joined.rows)
            return joined
    except FileRefused as error:
        raise CatalogueError(f"{path.name}: {error}") from None
    if others_too:
        return catalogue
    raise CatalogueError(
        f'{path.name}: plugin: "{monitor.plugin}": reads a log other than the kernel log; put the file into the '
        f"folder of plug-ins, where it becomes a separate check"
    )
