"""Runs one snapshot check and returns one result. Any error on the way is UNKNOWN, never FAIL.

A probe returns findings (PASS findings carry the measurements of healthy devices), or raises why it cannot.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import Check, NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Result, Verdict, severity, shorten, worst

log = logging.getLogger(__name__)

NOT_INSTALLED = frozenset({"ToolMissing", "NoHostEngine"})
"""Reasons of UNKNOWN that concern what is installed on the node, not the state of its hardware."""


class NotHere(Exception):
    """This node has no such device: SKIP. ``reason`` is one CamelCase word, ``message`` is for people."""

    def __init__(self, message: str, reason: str = "NoDevice") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class CannotTell(Exception):
    """The device is there, but could not be measured: UNKNOWN.

    message: what was tried, what happened, and what to do (which package to install)
    """

    def __init__(self, message: str, reason: str = "NotMeasured") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ToolMissing(CannotTell):
    """A program is not installed on this node. ``install``: the package that contains it."""

    def __init__(self, tool: str, install: str) -> None:
        super().__init__(f"{tool}: not found on this node; install {install}", "ToolMissing")


async def run_probe(
    check: Check,
    node: NodeView,
    parameters: Parameters,
    *,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """One run of a snapshot check. Raises nothing except CancelledError."""
    assert check.probe is not None  # noqa: S101 - a snapshot check has one
    started, begun = wall(), clock()
    findings: Sequence[Finding] = ()
    trouble: tuple[Verdict, str, str] | None = None
    try:
        async with asyncio.timeout(check.timeout_s):
            findings = await check.probe(node, parameters)
    except TimeoutError as error:
        late = Verdict.UNKNOWN, "Timeout", f"no result within {check.timeout_s:g} s"
        trouble = late if error.errno is None else _trouble(check, error)  # ETIMEDOUT of a socket or of NFS
    except Exception as error:
        trouble = _trouble(check, error)
    return _result(check, findings, trouble, started, clock() - begun)


def run_recorded(check: Check, text: bytes, parameters: Parameters) -> Result | None:
    """One result from recorded output of the check's tool; None if the check cannot read this kind of text."""
    if check.recorded is None:
        return None
    started = time.time()
    findings: Sequence[Finding] | None = ()
    trouble = None
    try:
        findings = check.recorded(text, parameters)
    except Exception as error:
        trouble = _trouble(check, error)
    return None if findings is None else _result(check, findings, trouble, started, time.time() - started)


def _trouble(check: Check, error: Exception) -> tuple[Verdict, str, str]:
    match error:
        case NotHere():
            return Verdict.SKIP, error.reason, error.message
        case CannotTell():
            return Verdict.UNKNOWN, error.reason, error.message
        case Unreadable():
            return Verdict.UNKNOWN, "Unreadable", str(error)
    log.warning("check %s raised an unexpected exception", check.name, exc_info=error)
    return Verdict.UNKNOWN, "ProbeFailed", f"{type(error).__name__}: {error}"


def _result(
    check: Check,
    findings: Sequence[Finding],
    trouble: tuple[Verdict, str, str] | None,
    started: float,
    duration_s: float,
) -> Result:
    ordered = tuple(sorted(findings, key=lambda finding: -severity(finding.verdict)))
    verdict, reason, message = trouble or (worst([finding.verdict for finding in ordered]), "", "")
    if trouble is None and ordered and verdict is not Verdict.PASS:
        reason, message = ordered[0].reason, ordered[0].message
    return Result(
        check=check.name,
        verdict=verdict,
        reason=reason,
        message=shorten(message),
        findings=ordered,
        started=started,
        duration_s=duration_s,
    )
