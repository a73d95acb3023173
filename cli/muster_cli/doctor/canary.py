"""`muster doctor --canary`: sends one canary from an agent to the tainter, and names the hop where it stopped.

The request is the NodeHealth's ``spec.canary``. The agent copies its id into the status, the tainter decides what a
fault would lead to, and writes that beside the request. Nothing is tainted.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.findings import DoctorFinding
from muster_cli.report.quantities import age
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.nodehealth import PATH, CanaryRequest, NodeHealth
from muster_tainter.canary.trial import Arrival

AREA = "canary"
PATIENCE_S = 30.0  # an agent publishes within 1 s, or 10 s if it has published much; the tainter answers within 5 s
_LOOK_EVERY_S = 0.2
_NO_REQUEST = CanaryRequest()


@dataclass(frozen=True)
class CanaryTrial:
    """How far the canary came.

    node: empty for any; exists: it has a NodeHealth; agent: an agent reports there. reported_s, decided_s: after how
    many seconds; None: not. unread: the agent did not read its line in the kernel log. request: as last read;
    replaced: another person has requested one at the same time
    """

    node: str
    exists: bool = True
    agent: bool = False
    reported_s: float | None = None
    decided_s: float | None = None
    unread: bool = False
    request: CanaryRequest = _NO_REQUEST
    replaced: bool = False
    error: str = ""


async def send_canary(
    client: KubeClient,
    node: str,
    by: str,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> CanaryTrial:
    """node: empty for any with an agent. Raises ApiError if nothing could be sent."""
    health = await (_read(client, node) if node else _any_with_agent(client))
    if health is None:
        return CanaryTrial(node, exists=False)
    name = health.metadata.name
    if not health.status.agent.pod_uid:
        return CanaryTrial(name)
    request = {"id": secrets.token_hex(8), "by": shorten(by), "result": None, "message": None}
    await client.patch(f"{PATH}/{name}", {"spec": {"canary": request}})
    trial, begun = CanaryTrial(name, agent=True), clock()
    reported_s: float | None = None
    while (waited_s := clock() - begun) < PATIENCE_S:
        await sleep(_LOOK_EVERY_S)
        try:
            seen = await _read(client, name)
        except ApiError as error:
            return CanaryTrial(name, agent=True, reported_s=reported_s, error=str(error))
        if seen is None:
            return CanaryTrial(name, agent=True, reported_s=reported_s, error=f"NodeHealth {name} was deleted")
        waited_s, asked = clock() - begun, seen.spec.canary
        if asked.id != request["id"]:
            return CanaryTrial(name, agent=True, reported_s=reported_s, request=asked, replaced=True)
        if seen.status.canary.unread != health.status.canary.unread and seen.status.canary.unread:
            return CanaryTrial(name, agent=True, unread=True, request=asked)
        if reported_s is None and seen.status.canary.id == request["id"]:
            reported_s = waited_s
        trial = CanaryTrial(name, agent=True, reported_s=reported_s, request=asked)
        if asked.result:
            return CanaryTrial(name, agent=True, reported_s=reported_s, decided_s=waited_s, request=asked)
    return trial


def judge_canary(trial: CanaryTrial) -> list[DoctorFinding]:
    """The hops, in their order, up to the one that is broken."""
    if not trial.exists:
        what = (
            f"tainter: {f'node {trial.node}' if trial.node else 'no node'} has {'no' if trial.node else 'a'} NodeHealth"
        )
        mend = "kubectl get nodes,nodehealths; the leading tainter makes a NodeHealth for each node"
        return [_finding(Verdict.FAIL, what, mend)]
    if not trial.agent:
        mend = f"kubectl get pods --all-namespaces -l app=muster-agent --field-selector spec.nodeName={trial.node}"
        return [_finding(Verdict.FAIL, f"agent: no agent reports for node {trial.node}", mend)]
    if trial.replaced:
        what = f"{trial.node}: somebody ({trial.request.by or 'unknown'}) has requested another canary in the meantime"
        return [_finding(Verdict.UNKNOWN, what, "run the command again")]
    if trial.unread:
        what = f"kernel log: the agent of {trial.node} has not read the line that it wrote into /dev/kmsg"
        mend = f"kubectl logs --all-containers -l app=muster-agent --namespace NAMESPACE; node {trial.node}"
        return [_finding(Verdict.FAIL, what, mend)]
    found = []
    if trial.reported_s is not None:
        found.append(_finding(Verdict.PASS, f"agent: {trial.node} reported the canary within {trial.reported_s:.1f} s"))
    if trial.error:
        return [*found, _finding(Verdict.UNKNOWN, trial.error)]
    if trial.decided_s is not None:
        return [*found, _judge_result(trial, trial.decided_s)]
    waited = age(PATIENCE_S)
    if trial.reported_s is None:
        what = (
            f"agent: {trial.node} has not reported the canary within {waited}: it is down, or cannot write to the API"
        )
        mend = f"kubectl logs --all-containers -l app=muster-agent --namespace NAMESPACE; node {trial.node}"
        return [_finding(Verdict.FAIL, what, mend)]
    what = f"tainter: has not decided about the canary within {waited}: no tainter leads, or its watch is down"
    return [*found, _finding(Verdict.FAIL, what, "muster doctor")]


def _judge_result(trial: CanaryTrial, decided_s: float) -> DoctorFinding:
    request = trial.request
    if request.result == Arrival.ARRIVED:
        return _finding(Verdict.PASS, f"tainter: decided within {decided_s:.1f} s: {request.message}")
    return _finding(Verdict.WARN, f"tainter: {request.result}: no taint would be set: {request.message}")


def _finding(verdict: Verdict, what: str, mend: str = "") -> DoctorFinding:
    return DoctorFinding(AREA, verdict, what, mend)


async def _read(client: KubeClient, node: str) -> NodeHealth | None:
    try:
        return await client.get(f"{PATH}/{node}", type=NodeHealth)
    except NotFound:
        return None


async def _any_with_agent(client: KubeClient) -> NodeHealth | None:
    """The first NodeHealth with an agent; without one, any NodeHealth."""
    other: NodeHealth | None = None
    async for page in client.list_pages(PATH, NodeHealth):
        for health in page.items:
            if health.status.agent.pod_uid:
                return health
            other = other or health
    return other
