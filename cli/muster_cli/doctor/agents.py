"""Whether each node has an agent that works and reports, and why not where it has none. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from muster_checks.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import EventFacts, HealthFacts, PodFacts, Template, Toleration, Workload
from muster_cli.doctor.findings import Finding, counted, some
from muster_cli.doctor.parts import INSTALL, trouble
from muster_kube.objects import Node, Taint
from muster_kube.times import seconds

AREA = "agents"
SETTLING_S = 180.0  # a new pod's image is pulled, its agent reads the kernel log to its end, and reports


def judge(
    nodes: Sequence[Node],
    daemon: Workload | None,
    pods: Sequence[PodFacts],
    events: Sequence[EventFacts],
    healths: Mapping[str, HealthFacts],
    now: float,
) -> list[Finding]:
    """daemon: the agents' DaemonSet; None: started by other means. pods: of agents. now: by the API server's clock."""
    if not nodes:
        return [Finding(AREA, Verdict.WARN, "the cluster has no nodes")]
    by_node = {pod.node: pod for pod in sorted(pods, key=lambda pod: pod.status.ready)}  # a ready one counts
    groups: dict[str, list[str]] = defaultdict(list)
    mends: dict[str, str] = {}
    well = 0
    for node in nodes:
        name = node.metadata.name
        why, mend = _ails(node, by_node.get(name), daemon, events, healths.get(name), now)
        if why:
            groups[why].append(name)
            mends.setdefault(why, mend)
        else:
            well += 1
    found = [
        Finding(AREA, Verdict.FAIL, f"{counted(len(names), 'node')} ({some(names)}): {why}", mends[why])
        for why, names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    found += _of_the_set(daemon, events, bool(pods))
    return found or [Finding(AREA, Verdict.PASS, f"{counted(well, 'node')}: each has an agent that reports")]


def _ails(
    node: Node,
    pod: PodFacts | None,
    daemon: Workload | None,
    events: Sequence[EventFacts],
    health: HealthFacts | None,
    now: float,
) -> tuple[str, str]:
    """What is wrong with this node's agent, and how to mend it; empty: nothing."""
    name = node.metadata.name
    if pod is None:
        return _without_pod(node, daemon)
    namespace = pod.metadata.namespace
    since = now - seconds(pod.metadata.creation_timestamp)
    if not pod.status.ready:
        if since < SETTLING_S and not any(each.restart_count for each in pod.status.container_statuses):
            return "", ""
        why = trouble(pod, events)
        return (
            f"its agent is not ready: {why}",
            f"kubectl -n {namespace} logs {pod.metadata.name}; muster explain {name}",
        )
    if since < SETTLING_S:
        return "", ""
    if health is None:
        return (
            "an agent, and no NodeHealth: the tainter makes one for each node of its pools",
            "muster policy check of the policy in force (its pools); is a tainter leading?",
        )
    if not health.status.verdict:
        return "its agent is ready and has never reported", f"kubectl -n {namespace} logs {pod.metadata.name}"
    said, uid = health.status.agent.pod_uid, pod.metadata.uid
    if said and uid and said != uid:
        return (
            "its NodeHealth is stale: what stands there was said by a pod that is gone",
            f"kubectl -n {namespace} logs {pod.metadata.name} (two agents that claim one node say so)",
        )
    return "", ""


def _without_pod(node: Node, daemon: Workload | None) -> tuple[str, str]:
    if daemon is None:
        return "no agent", INSTALL
    template = daemon.spec.template.spec
    where = f"kubectl -n {daemon.metadata.namespace} describe daemonset {daemon.metadata.name}"
    wrong = [
        f"{key}={value}" for key, value in template.node_selector.items() if node.metadata.labels.get(key) != value
    ]
    if wrong:
        return (
            f"no agent: agent.nodeSelector wants {', '.join(wrong)}",
            "label the nodes, or change agent.nodeSelector; nodes that Muster shall leave alone: ignore this",
        )
    refused = [taint for taint in node.spec.taints if not tolerated(taint, template.tolerations)]
    if refused:
        keys = some(f"{taint.key}:{taint.effect}" for taint in refused)
        return f"no agent: the taint {keys} is not tolerated", "agent.tolerations: [{operator: Exists}] (the default)"
    return "no agent, and neither selector nor taints say why", where


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    if taint.effect == "PreferNoSchedule":
        return True
    for each in tolerations:
        if each.effect not in ("", taint.effect) or (each.key and each.key != taint.key):
            continue
        if each.operator == "Exists" or (each.key and each.value == taint.value):
            return True
    return False


def _of_the_set(daemon: Workload | None, events: Sequence[EventFacts], any_pod: bool) -> Iterator[Finding]:
    if daemon is None:
        return
    name, namespace = daemon.metadata.name, daemon.metadata.namespace
    refused = [each for each in events if each.reason == "FailedCreate" and each.involved_object.name == name]
    if refused and not any_pod:
        last = max(refused, key=lambda each: each.at)
        yield Finding(
            AREA,
            Verdict.FAIL,
            f"no pod of DaemonSet {namespace}/{name} can be made: {shorten(last.message, 400)}",
            f"kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
            if "PodSecurity" in last.message
            else f"kubectl -n {namespace} describe daemonset {name}",
        )
    if daemon.status.desired_number_scheduled == 0:
        yield Finding(
            AREA, Verdict.FAIL, f"DaemonSet {namespace}/{name} is meant for no node at all", "see agent.nodeSelector"
        )


__all__ = ["AREA", "Template", "judge", "tolerated"]
