"""What one node says to /status, as agents tell each other and as people read it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from muster_agent.checks.check_outcome import CheckOutcome
from muster_checks.base.vocabulary import Result, Verdict, worst

PEER_AGENT = "muster-agent"
"""User-Agent of calls between agents. Whoever gets such a call answers for itself or refuses, so that none goes round
in circles when an address has changed hands."""


class CheckAnswer(Result, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A result, and what came of the wish to have it made. ageSeconds, refused, why: as in CheckOutcome."""

    age_seconds: float = 0.0
    refused: str = ""
    why: str = ""


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """endpoint: ``address:port`` it was asked at, empty where none is known; error: why it could not be asked."""

    node: str
    verdict: Verdict
    endpoint: str = ""
    results: tuple[CheckAnswer, ...] = ()
    error: str = ""


class Ending(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The last line of format=jsonl, and what follows the nodes in format=json.

    summary: by node, what is wrong with it, or ``["Ok"]``
    verdict: the worst of all nodes; UNKNOWN where there is none
    notes:   what was given in the query and had no effect
    error:   why the answer is not whole; absent while it is
    """

    summary: dict[str, list[str]]
    runtime_seconds: float
    verdict: Verdict
    notes: tuple[str, ...] = ()
    error: str = ""


class StatusDocument(Ending, frozen=True, kw_only=True, rename="camel"):
    """The whole of format=json. nodes: as they answered."""

    nodes: tuple[NodeAnswer, ...]


def node_answer(node: str, endpoint: str, answered: Sequence[CheckOutcome]) -> NodeAnswer:
    """The answers of the checks of one node that was asked."""
    results = tuple(_check_answer(each) for each in answered)
    return NodeAnswer(
        node=node, endpoint=endpoint, verdict=worst([r.verdict for r in results], Verdict.UNKNOWN), results=results
    )


def _check_answer(answered: CheckOutcome) -> CheckAnswer:
    fields: dict[str, Any] = {name: getattr(answered.result, name) for name in Result.__struct_fields__}
    if answered.age_s:  # a 0.0 of another making is no default to msgspec
        fields["age_seconds"] = answered.age_s
    return CheckAnswer(**fields, refused=answered.refused, why=answered.why)


def no_answer(node: str, endpoint: str, checks: Sequence[str], reason: str, message: str) -> NodeAnswer:
    """A node that could not be asked, or whose answer is none. reason: NoAgent, Unreachable, NoAnswer, BadAnswer,
    WrongNode or Refused."""
    results = tuple(
        CheckAnswer(check=check, verdict=Verdict.UNKNOWN, reason=reason, message=message) for check in checks
    )
    return NodeAnswer(node=node, endpoint=endpoint, verdict=Verdict.UNKNOWN, results=results, error=message)
