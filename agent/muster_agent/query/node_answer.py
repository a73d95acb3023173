"""The answer of one node to /status, as agents exchange it and as clients read it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from muster_agent.checks.check_outcome import CheckOutcome
from muster_checks.base.vocabulary import Result, Verdict, worst

PEER_AGENT = "muster-agent"
"""User-Agent of requests between agents. An agent answers such a request only for its own node, so that requests do not
loop after an address has moved to another node."""


class CheckAnswer(Result, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A result, and whether this query produced it. ageSeconds, refused, why: as in CheckOutcome."""

    age_seconds: float = 0.0
    refused: str = ""
    why: str = ""


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of one node.

    endpoint: ``address:port`` of its agent; empty if unknown
    error:    why there is no answer; empty if there is one
    """

    node: str
    verdict: Verdict
    endpoint: str = ""
    results: tuple[CheckAnswer, ...] = ()
    error: str = ""


class Ending(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The last line of format=jsonl, and the members after the nodes in format=json.

    summary: by node, its problems, ``["Ok"]``, or ``["Skipped"]`` if every check was skipped
    verdict: the worst of all nodes; UNKNOWN if there are no nodes
    notes:   parameters of the query that had no effect
    error:   why the answer is incomplete; absent if it is complete
    """

    summary: dict[str, list[str]]
    runtime_seconds: float
    verdict: Verdict
    notes: tuple[str, ...] = ()
    error: str = ""


class StatusDocument(Ending, frozen=True, kw_only=True, rename="camel"):
    """The document of format=json. nodes: in the order in which they answered."""

    nodes: tuple[NodeAnswer, ...]


def node_answer(node: str, endpoint: str, answered: Sequence[CheckOutcome]) -> NodeAnswer:
    """The answer of a node, from the outcomes of its checks."""
    results = tuple(_check_answer(each) for each in answered)
    return NodeAnswer(
        node=node, endpoint=endpoint, verdict=worst([r.verdict for r in results], Verdict.UNKNOWN), results=results
    )


def _check_answer(answered: CheckOutcome) -> CheckAnswer:
    fields: dict[str, Any] = {name: getattr(answered.result, name) for name in Result.__struct_fields__}
    if answered.age_s:  # msgspec omits only the very object of the default
        fields["age_seconds"] = answered.age_s
    return CheckAnswer(**fields, refused=answered.refused, why=answered.why)


def no_answer(node: str, endpoint: str, checks: Sequence[str], reason: str, message: str) -> NodeAnswer:
    """The answer for a node that cannot be reached or gives no valid answer. reason: NoAgent, Unreachable, NoAnswer,
    BadAnswer, WrongNode, Refused, FleetUnknown or Error."""
    results = tuple(
        CheckAnswer(check=check, verdict=Verdict.UNKNOWN, reason=reason, message=message) for check in checks
    )
    return NodeAnswer(node=node, endpoint=endpoint, verdict=Verdict.UNKNOWN, results=results, error=message)
