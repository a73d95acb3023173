"""Rules of node-problem-detector's log monitors as rows of the catalogue; its files are read unchanged.

A file (docs/plugins.md has one) says which log it is for (``plugin``: kmsg, journald or filelog), and in ``rules`` what
a line means. ``temporary`` becomes a WARN, ``permanent`` a FAIL that asks for nothing: what it does to the node is the
policy's to say. A pattern has to end where the line ends. What that program does otherwise:

* ``lookback`` is not used: Muster goes on where it stopped, and at first reads the log of the whole boot;
* a condition once true stays so there for good; here it is over with the boot or by a person's word;
* a ``type`` other than the two is taken for permanent there and never seen again; here it is refused;
* a rule without a pattern fires there on every line; here it is refused.

Checked against its source: pkg/systemlogmonitor (config.go, log_buffer.go, log_monitor.go).
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from muster_checks.base.npd_json import FileRefused, NpdForm, Reason, duration, first_error, read_document
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.dmesg.catalogue.match import Pattern
from muster_checks.dmesg.catalogue.row_file import check_size, count_instructions
from muster_checks.dmesg.catalogue.types import Catalogue, CatalogueError, PatternRow

INSTRUCTIONS_LIMIT = 8_000  # of all files together: the shipped rows take 6,300 of 20,000, its own file has those
LINES_LIMIT = 100  # of bufferSize, for patterns that need it: each new line costs a scan of so many
KERNEL = "kernel"  # the identifier of the kernel's own messages in the journal

# What may match a newline, and so reach over lines. Rather too much than too little: it only costs time.
_SPANS = re.compile(
    r"""
    \^ | \n                              # the beginning of all lines; a negated class, which has the newline in it
    | \\[nsDWAxCpPQ0-7]                  # \n, \s, \D, \W, \A, any byte by number, Unicode classes, quoted text
    | \\[aftvr]- | [\x00-\x1f]-          # a range of control characters
    | \[:(?:\^|space|cntrl|ascii)        # [[:space:]]
    | \(\?[imsU]*[sm]                    # (?s) and (?m)
    """,
    re.X,
)
_LAST_DOLLAR = re.compile(r"(?<!\\)((?:\\\\)*)\$$")


def reaches_over_lines(pattern: str) -> bool:
    """May a match of ``pattern`` (RE2) hang on more than its last line? Never False wrongly."""
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
    """A log monitor's file. ``plugin_config``: of journald ``source``; of filelog ``timestamp``, ``message`` and
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
                f'rules[{index}].condition: "{rule.condition}": a permanent rule needs one of conditions; '
                f"there is {', '.join(sorted(known)) or 'none'}"
            )
        if reaches_over_lines(rule.pattern) and monitor.buffer_size > LINES_LIMIT:
            raise FileRefused(
                f"bufferSize: {monitor.buffer_size}: expected at most {LINES_LIMIT}, as rules[{index}].pattern may "
                f"reach over all of them"
            )
    return monitor


def to_rows(monitor: LogMonitor, file: str) -> tuple[PatternRow, ...]:
    """One row for each rule. Raises FileRefused for more patterns than leave room for others in one scan."""
    rows = tuple(_row(monitor, rule, file) for rule in monitor.rules)
    check_instructions(rows)
    return rows


def check_instructions(rows: Iterable[PatternRow]) -> None:
    """Raises FileRefused."""
    total = count_instructions(rows)
    if total > INSTRUCTIONS_LIMIT:
        raise FileRefused(
            f"rules: patterns of {total} RE2 instructions with those of the files before it; expected at most "
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
        delay_s=monitor.delay,
    )


def _at_line_end(pattern: str) -> str:
    """That program trims each line first; here blanks at its end are allowed for instead."""
    return rf"(?:{_LAST_DOLLAR.sub(lambda found: found[1], pattern)})[ \t\r]*$"


def apply_json(catalogue: Catalogue, path: Path, *, others_too: bool = False) -> Catalogue:
    """``catalogue`` with the rules of a log monitor's file after its own rows. Raises CatalogueError.

    others_too: a file that is for another log, or no log monitor's, changes nothing
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
        f'{path.name}: plugin: "{monitor.plugin}": reads another log than the kernel\'s; in the folder of plug-ins it '
        f"becomes a check of its own"
    )
