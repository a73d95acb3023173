"""The answers of /report and /checks. They run nothing."""

from typing import Any

import msgspec

from muster_agent.checks.node_check import NodeCheck
from muster_agent.findings.stored_ledger import ClearedFinding
from muster_agent.node_agent import Agent
from muster_checks.base.vocabulary import Result, Verdict, worst
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import RequestAnswer


class CheckReport(Result, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """The published result of a check, and its state.

    ran_at:         start of its last run, seconds since the epoch; 0: it has not run
    period_seconds: seconds between two periodic runs; 0: none
    due_since:      since when a heavy check has been waiting for an idle node
    tallies:        runs since the agent started, by outcome
    changes:        the last hundred changes of its verdict
    """

    caught_up: bool
    counts: dict[str, int]
    cleared: tuple[ClearedFinding, ...]
    number_given: int
    ran_at: float
    period_seconds: float
    due_since: float | None
    tallies: dict[str, int]
    changes: tuple[Any, ...]


class AgentReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of one node.

    idle_since: RFC 3339; empty while work runs on the node, which ``busy`` then describes
    due:        heavy checks that wait for an idle node
    answers:    the answers to the requests in the node's NodeHealth
    """

    node: str
    verdict: Verdict
    boot_id: str = msgspec.field(name="bootID")
    version: str
    pod_uid: str = msgspec.field(name="podUID")
    not_ready: list[str]
    idle_since: str
    busy: str
    due: tuple[str, ...]
    answers: tuple[RequestAnswer, ...]
    checks: tuple[CheckReport, ...]


class Declaration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A check as listed by /checks.

    parameters: JSON Schema
    values:     the parameters configured on this node
    """

    name: str
    description: str
    cost: str
    kind: str
    period_seconds: float | None
    timeout_seconds: float
    devices: tuple[str, ...]
    parameters: dict[str, Any]
    values: dict[str, Any]
    examples: tuple[str, ...]


class Declarations(msgspec.Struct, frozen=True):
    checks: tuple[Declaration, ...]


def make_report(agent: Agent) -> AgentReport:
    since = agent.occupancy.idle_since
    return AgentReport(
        node=agent.node,
        verdict=worst([running.view().verdict for running in agent.checks.values() if running.known], Verdict.UNKNOWN),
        boot_id=agent.local.boot_id,
        version=agent.identity.version,
        pod_uid=agent.identity.pod_uid,
        not_ready=agent.unready(),
        idle_since="" if since is None else rfc3339(since),
        busy=agent.occupancy.busy,
        due=agent.due(),
        answers=agent.requests.answers(),
        checks=tuple(_check(running) for running in agent.checks.values()),
    )


def list_declarations(agent: Agent) -> Declarations:
    return Declarations(tuple(_declaration(running) for running in agent.checks.values()))


def _check(running: NodeCheck) -> CheckReport:
    result = running.result()
    return CheckReport(
        **{name: getattr(result, name) for name in Result.__struct_fields__},
        caught_up=running.caught_up,
        counts=dict(running.counts()),
        cleared=running.ledger.over(),
        number_given=running.ledger.counter,
        ran_at=running.ran_at,
        period_seconds=running.period_s,
        due_since=running.due_since,
        tallies=dict(running.tallies),
        changes=tuple(running.history.entries),
    )


def _declaration(running: NodeCheck) -> Declaration:
    check = running.check
    return Declaration(
        name=check.name,
        description=check.description,
        cost=check.cost,
        kind="stream" if check.stream is not None else "snapshot",
        period_seconds=check.period_s,
        timeout_seconds=check.timeout_s,
        devices=check.devices,
        parameters=check.parameters.model_json_schema(),
        values=running.parameters.model_dump(mode="json"),
        examples=check.examples,
    )
