"""Judges whether each node has an agent that runs and reports, and finds the reason if not. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import EventFacts, HealthFacts, PodFacts, Workload, WorkloadPodSpec, WorkloadToleration
from muster_cli.doctor.findings import DoctorFinding, join_some
from muster_cli.doctor.judges.parts import INSTALL, describe_trouble
from muster_cli.report.quantities import plural
from muster_kube.api.objects import Node, Taint
from muster_kube.api.times import seconds
from muster_tainter.faults.desired_state import MANAGED_LABEL, is_managed

AREA = "agents"
SETTLING_S = 180.0  # for a new pod to pull its image, read the kernel log and report


class AgentTrouble(NamedTuple):
    """A problem of a node's agent, and how to fix it."""

    why: str
    mend: str
    verdict: Verdict = Verdict.FAIL


def judge(
    nodes: Sequence[Node],
    daemon: Workload | None,
    pods: Sequence[PodFacts],
    events: Sequence[EventFacts],
    healths: Mapping[str, HealthFacts],
    now: float,
) -> list[DoctorFinding]:
    """daemon: the DaemonSet of the agents, None without one. pods: of agents. now: by the clock of the API server."""
    if not nodes:
        return [DoctorFinding(AREA, Verdict.WARN, "the cluster has no nodes")]
    alone = [node.metadata.name for node in nodes if not is_managed(node)]
    by_node = {
        pod.node: pod for pod in sorted(pods, key=lambda pod: pod.status.ready)
    }  # last, so that a ready pod wins
    groups: dict[str, list[str]] = defaultdict(list)
    troubles: dict[str, AgentTrouble] = {}
    well = 0
    for node in nodes:
        name = node.metadata.name
        if name in alone:
            continue
        if trouble := _find_trouble(node, by_node.get(name), daemon, events, healths.get(name), now):
            groups[trouble.why].append(name)
            troubles.setdefault(trouble.why, trouble)
        else:
            well += 1
    found = [
        DoctorFinding(
            AREA,
            troubles[why].verdict,
            f"{plural(len(names), 'node')} ({join_some(names)}): {why}",
            troubles[why].mend,
        )
        for why, names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    found += _judge_daemon_set(daemon, events, bool(pods))
    left = f"; {plural(len(alone), 'node')} not managed ({MANAGED_LABEL}=false)" if alone else ""
    return found or [
        DoctorFinding(AREA, Verdict.PASS, f"{plural(well, 'node')}: each agent is ready and reports{left}")
    ]


def _find_trouble(
    node: Node,
    pod: PodFacts | None,
    daemon: Workload | None,
    events: Sequence[EventFacts],
    health: HealthFacts | None,
    now: float,
) -> AgentTrouble | None:
    name = node.metadata.name
    if pod is None:
        return _without_pod(node, daemon)
    namespace = pod.metadata.namespace
    since = now - seconds(pod.metadata.creation_timestamp)
    if not pod.status.ready:
        if since < SETTLING_S and not any(each.restart_count for each in pod.status.container_statuses):
            return None
        why = describe_trouble(pod, events)
        return AgentTrouble(
            f"the agent is not ready: {why}",
            f"kubectl -n {namespace} logs {pod.metadata.name}; muster explain {name}",
        )
    if since < SETTLING_S:
        return None
    if health is None:
        return AgentTrouble(
            "the agent runs, but the node has no NodeHealth: the tainter creates one for each node of its pools",
            "check that a tainter is leading, and that a pool of the active policy selects the node",
        )
    if not health.status.verdict:
        logs = f"kubectl -n {namespace} logs {pod.metadata.name}"
        return AgentTrouble("the agent is ready but has never reported", logs)
    reporter, uid = health.status.agent.pod_uid, pod.metadata.uid
    if reporter and uid and reporter != uid:
        return AgentTrouble(
            "the NodeHealth is stale: the pod that wrote it no longer exists",
            f"kubectl -n {namespace} logs {pod.metadata.name} (the log also shows if two agents claim the node)",
        )
    return None


def _without_pod(node: Node, daemon: Workload | None) -> AgentTrouble:
    if daemon is None:
        return AgentTrouble("no agent", INSTALL)
    template = daemon.spec.template.spec
    where = f"kubectl -n {daemon.metadata.namespace} describe daemonset {daemon.metadata.name}"
    wrong = [
        f"{key}={value}" for key, value in template.node_selector.items() if node.metadata.labels.get(key) != value
    ]
    if wrong:
        return AgentTrouble(
            f"no agent: agent.nodeSelector requires {', '.join(wrong)}",
            "label the nodes, or change agent.nodeSelector; to exclude a node: "
            f"kubectl label node {node.metadata.name} {MANAGED_LABEL}=false",
            Verdict.WARN,  # may be intended, or a forgotten label
        )
    refused = [taint for taint in node.spec.taints if not is_tolerated(taint, template.tolerations)]
    if refused:
        keys = join_some(f"{taint.key}:{taint.effect}" for taint in refused)
        mend = "set agent.tolerations: [{operator: Exists}] (the default) with helm upgrade"
        return AgentTrouble(f"no agent: its DaemonSet does not tolerate the taint {keys}", mend)
    return AgentTrouble("no agent, although node selector and tolerations match", where)


def is_tolerated(taint: Taint, tolerations: Iterable[WorkloadToleration]) -> bool:
    if taint.effect == "PreferNoSchedule":
        return True
    for each in tolerations:
        if each.effect not in ("", taint.effect) or (each.key and each.key != taint.key):
            continue
        if each.operator == "Exists" or (each.key and each.value == taint.value):
            return True
    return False


def _judge_daemon_set(daemon: Workload | None, events: Sequence[EventFacts], any_pod: bool) -> Iterator[DoctorFinding]:
    if daemon is None:
        return
    name, namespace = daemon.metadata.name, daemon.metadata.namespace
    refused = [each for each in events if each.reason == "FailedCreate" and each.involved_object.name == name]
    if refused and not any_pod:
        last = max(refused, key=lambda each: each.at)
        yield DoctorFinding(
            AREA,
            Verdict.FAIL,
            f"DaemonSet {namespace}/{name} cannot create pods: {shorten(last.message, 400)}",
            f"kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
            if "PodSecurity" in last.message
            else f"kubectl -n {namespace} describe daemonset {name}",
        )
    if daemon.status.desired_number_scheduled == 0:
        yield DoctorFinding(
            AREA, Verdict.FAIL, f"DaemonSet {namespace}/{name} matches no node", "check agent.nodeSelector"
        )


__all__ = ["AREA", "WorkloadPodSpec", "is_tolerated", "judge"]
