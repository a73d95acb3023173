"""Runs the rules of a custom plug-in monitor when each is due, and interprets their exit codes.

0 is OK, 1 NonOK, anything else Unknown; the beginning of stdout, trimmed, is the message. A permanent rule that is
NonOK is a FAIL without a class: a condition of node-problem-detector does not change the node either; a policy rule
may. A temporary rule raises an event there and is a WARN here. Unknown is always UNKNOWN, although that program raises
its event for it too. All rules run at the first run; later, a rule that is not yet due keeps its last result.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Measurement, Verdict, severity, shorten
from muster_checks.plugins.custom import OUTPUT_BYTES, CustomMonitor, CustomRule

log = logging.getLogger(__name__)

EARLY = 0.1  # of a period: a run that starts slightly early must not delay a rule until the next run


class ScriptStatus(Enum):
    OK = 0
    NON_OK = 1
    UNKNOWN = 2


class ScriptResult(msgspec.Struct, frozen=True):
    status: ScriptStatus
    message: str


NOT_YET = ScriptResult(ScriptStatus.UNKNOWN, "its first run has not ended yet")


def read_result(rule: CustomRule, output: Output, max_bytes: int) -> ScriptResult:
    """The result of one run of the executable."""
    printed = output.stdout.strip()
    if output.timed_out:
        quoted = json.dumps(printed.decode("utf-8", "replace"), ensure_ascii=False)
        text = f"Timeout when running plugin {json.dumps(rule.path)}: state - signal: killed. output - {quoted}"
        return ScriptResult(ScriptStatus.UNKNOWN, _cut(text.encode(), max_bytes))
    status = {0: ScriptStatus.OK, 1: ScriptStatus.NON_OK}.get(
        -1 if output.exit_code is None else output.exit_code, ScriptStatus.UNKNOWN
    )
    message = _cut(printed, max_bytes) if not output.missing else ""
    return ScriptResult(status, message or output.trouble)


def judge(answers: Iterable[tuple[CustomRule, ScriptResult]]) -> list[Finding]:
    """One finding per reason: if rules share a reason, the worst result counts."""
    findings: dict[str, Finding] = {}
    for rule, answer in answers:
        finding = _finding(rule, answer)
        known = findings.get(rule.reason)
        if known is None or severity(finding.verdict) > severity(known.verdict):
            findings[rule.reason] = finding
    return list(findings.values())


def _finding(rule: CustomRule, answer: ScriptResult) -> Finding:
    verdict = {ScriptStatus.OK: Verdict.PASS, ScriptStatus.UNKNOWN: Verdict.UNKNOWN}.get(
        answer.status, Verdict.FAIL if rule.condition else Verdict.WARN
    )
    message = answer.message
    measurements: tuple[Measurement, ...] = ()
    if rule.condition and answer.status is ScriptStatus.OK:
        message = rule.sound or message
    elif rule.condition:
        message = f"{rule.condition}{' unknown' if answer.status is ScriptStatus.UNKNOWN else ''}: {message}"
    if rule.condition and answer.status is not ScriptStatus.UNKNOWN:
        measurements = (Measurement(rule.condition, float(answer.status.value), ""),)
    return Finding(
        component="host", verdict=verdict, reason=rule.reason, message=shorten(message), measurements=measurements
    )


class _RuleState:
    """A rule's last result, its last start, and whether it is running."""

    def __init__(self) -> None:
        self.answer = NOT_YET
        self.started: float | None = None
        self.running = False


class CustomProbe:
    """The probe of one file. It keeps each rule's last result between runs."""

    def __init__(self, monitor: CustomMonitor) -> None:
        self._monitor = monitor
        self._states = [_RuleState() for _ in monitor.rules]

    async def __call__(self, node: NodeView, _parameters: Parameters) -> Sequence[Finding]:
        now, early_s = node.history.clock(), EARLY * self._monitor.period_s
        room = asyncio.Semaphore(self._monitor.concurrency)
        async with asyncio.TaskGroup() as group:
            for rule, state in zip(self._monitor.rules, self._states, strict=True):
                due = state.started is None or now - state.started >= rule.interval_s - early_s
                if due and not state.running:  # a rule never overlaps itself
                    state.started, state.running = now, True
                    group.create_task(self._run(node, rule, state, room))
        return judge((rule, state.answer) for rule, state in zip(self._monitor.rules, self._states, strict=True))

    async def _run(self, node: NodeView, rule: CustomRule, state: _RuleState, room: asyncio.Semaphore) -> None:
        try:
            async with room:
                output = await node.commands.run(rule.argv, timeout_s=rule.timeout_s, limit_bytes=OUTPUT_BYTES)
            answer = read_result(rule, output, self._monitor.max_output_bytes)
            changed = answer.status is not state.answer.status
            if output.stderr:
                log.log(
                    logging.INFO if changed and answer.status is not ScriptStatus.OK else logging.DEBUG,
                    "plug-in %s wrote to stderr: %s",
                    rule.path,
                    shorten(output.stderr.decode("utf-8", "replace"), 1024),
                )
            still_true = not changed and answer.status is ScriptStatus.NON_OK and rule.condition
            if not still_true or self._monitor.follow_messages:
                state.answer = answer
        finally:
            state.running = False


def _cut(text: bytes, limit: int) -> str:
    return text[:limit].decode("utf-8", "ignore").replace("\x00", "")
