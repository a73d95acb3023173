"""The planned checks of a node and their history, stored in the NodeHealth, so that a new leader can continue.

A request of the plan is in ``spec.requests`` until its answer has been recorded in the annotation ``muster.dev/tests``,
in one write. While it is there, the node takes one of the plan's slots.
"""

from collections.abc import Mapping

import msgspec

from muster_checks.base.execution import NOT_INSTALLED
from muster_checks.base.vocabulary import Verdict
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import CheckRequest, NodeHealth, RequestAnswer
from muster_tainter.policy.rules import OUR_PREFIX
from muster_tainter.policy.sections.heavy_checks import DAY_S

ANNOTATION = OUR_PREFIX + "tests"  # of the NodeHealth
TESTING_LABEL = OUR_PREFIX + "testing"  # of the Node; on the NodeHealth it lets a new leader find pending requests
MANAGER = "muster-tainter-plan"
ID_PREFIX = "plan-"
BUSY = "busy"  # CheckHistory.while_idle of a node that was not idle

_CHECKS_LIMIT = 32  # a node has a dozen heavy checks
_MEASURED = (Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.SKIP)
_DOUBLINGS = 16


class CheckRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One check on one node.

    at:       when it last measured something
    idle:     the node's ``idleSince`` then; a different value now means that a job has run since
    after:    not requested before that time
    failures: consecutive answers that measured nothing
    missing:  the last answer says that what the check needs is not installed on the node
    """

    at: str = ""
    idle: str = ""
    after: str = ""
    failures: int = 0
    missing: bool = False


class CheckHistory(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One node.

    after, while_idle: nothing is requested before that, while ``idleSince`` is unchanged (empty: in any case)
    silent:            consecutive requests without an answer
    boot, passed:      checks that a new node has passed in that boot, before its first job
    """

    checks: dict[str, CheckRecord] = {}
    after: str = ""
    while_idle: str = ""
    silent: int = 0
    boot: str = ""
    passed: tuple[str, ...] = ()


_EMPTY = CheckHistory()
_decoder = msgspec.json.Decoder(CheckHistory)


def read_history(health: NodeHealth) -> CheckHistory:
    """The annotation's content; empty if it is invalid (then the checks are due)."""
    text = health.metadata.annotations.get(ANNOTATION)
    if not text:
        return _EMPTY
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return _EMPTY


def encode_history(past: CheckHistory) -> str:
    return msgspec.json.encode(past).decode()


def is_ours(request: CheckRequest) -> bool:
    return request.id.startswith(ID_PREFIX) and request.by == MANAGER and len(request.checks) == 1


def final_answer(health: NodeHealth, request: CheckRequest) -> RequestAnswer | None:
    """The final answer, if there is one."""
    for answer in health.status.answers:
        if answer.id == request.id and answer.finished:
            return answer
    return None


def pending_request(health: NodeHealth) -> CheckRequest | None:
    """The plan's request that the node has not answered yet."""
    for request in health.spec.requests:
        if is_ours(request) and final_answer(health, request) is None:
            return request
    return None


def check_under_test(health: NodeHealth) -> str | None:
    """The check that the plan runs on the node; the value of the label ``muster.dev/testing``."""
    request = pending_request(health) if health.spec.requests else None
    return None if request is None else request.checks[0]


def pre_flight_left(health: NodeHealth, checks: tuple[str, ...]) -> tuple[str, ...]:
    """The ``checks`` that the node has not passed in this boot."""
    if not checks:
        return ()
    past = read_history(health)
    passed = past.passed if past.boot and past.boot == health.status.boot_id else ()
    return tuple(check for check in checks if check not in passed)


def has_measured(answer: RequestAnswer) -> bool:
    return answer.verdict in _MEASURED


def note_answer(
    past: CheckHistory,
    health: NodeHealth,
    request: CheckRequest,
    answer: RequestAnswer | None,
    *,
    pause_s: float,
    now: float,
    new: bool,
) -> CheckHistory:
    """``past`` with the result of ``request``. answer None: there is none, and the plan gives up waiting. new: the node
    waits for its first job, so only a PASS counts."""
    check = request.checks[0]
    known = past.checks.get(check, CheckRecord())
    idle = health.status.idle_since
    if answer is None:
        after = rfc3339_whole(now + backoff_s(pause_s, past.silent))
        return msgspec.structs.replace(past, after=after, while_idle="", silent=past.silent + 1)
    past = msgspec.structs.replace(past, after="", while_idle="", silent=0)
    if answer.verdict == Verdict.UNKNOWN and answer.reason == "Busy":
        return msgspec.structs.replace(past, after=rfc3339_whole(now + pause_s), while_idle=idle or BUSY)
    again = rfc3339_whole(now + backoff_s(pause_s, known.failures))
    if not has_measured(answer):
        missing = answer.verdict == Verdict.UNKNOWN and answer.reason in NOT_INSTALLED
        test = CheckRecord(at=known.at, idle=known.idle, after=again, failures=known.failures + 1, missing=missing)
    elif new and answer.verdict != Verdict.PASS:
        test = CheckRecord(at=rfc3339_whole(now), idle=idle, after=again, failures=known.failures + 1)
    else:
        test = CheckRecord(at=rfc3339_whole(now), idle=idle)
        if new:
            past = _passed(past, check, health.status.boot_id)
    return msgspec.structs.replace(past, checks=_bounded({**past.checks, check: test}))


def _passed(past: CheckHistory, check: str, boot: str) -> CheckHistory:
    before = past.passed if past.boot == boot else ()
    return msgspec.structs.replace(past, boot=boot, passed=tuple(dict.fromkeys((*before, check))))


def _bounded(checks: Mapping[str, CheckRecord]) -> dict[str, CheckRecord]:
    """The latest ones: agents name the checks, and the annotation's size is limited."""
    if len(checks) <= _CHECKS_LIMIT:
        return dict(checks)
    latest = sorted(checks.items(), key=lambda item: max(item[1].at, item[1].after), reverse=True)
    return dict(latest[:_CHECKS_LIMIT])


def backoff_s(pause_s: float, failures: int) -> float:
    """pause_s, doubled for each earlier failure, at most a day (or ``pause_s``, if that is longer)."""
    return float(min(pause_s * 2 ** min(max(failures, 0), _DOUBLINGS), max(DAY_S, pause_s)))


def paused_until(past: CheckHistory, idle_since: str) -> float:
    """Seconds since the epoch before which nothing is requested on the node; 0: now."""
    if not past.after or (past.while_idle and past.while_idle != idle_since):
        return 0.0
    return seconds(past.after)
