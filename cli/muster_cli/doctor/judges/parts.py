"""Finds the installed parts and judges whether they run. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import ContainerFacts, EventFacts, PodFacts, Workload
from muster_cli.doctor.findings import DoctorFinding
from muster_cli.report.quantities import plural

AREA = "parts"
AGENT, TAINTER, OPERATOR, PROXY = "agent", "tainter", "operator", "vipu-proxy"
COMPONENT, VERSION = "app.kubernetes.io/component", "app.kubernetes.io/version"
SELECTOR = "app.kubernetes.io/name=muster"
INSTALL = "helm upgrade muster helm/muster --install (docs/install.md)"
# to find parts without a workload, such as those of `muster sandbox`
ACCOUNTS = {AGENT: "muster-agent", TAINTER: "muster-tainter", OPERATOR: "muster-operator", PROXY: "muster-vipu-proxy"}
_OF_CONTROLLER = "-controller-manager"


@dataclass(frozen=True)
class InstalledPart:
    """workload: None if the part was not started by the chart. prefix: of the names of IPU parts, with the hyphen."""

    kind: str
    namespace: str
    account: str
    name: str = ""
    version: str = ""
    workload: Workload | None = None

    @property
    def prefix(self) -> str:
        for ending in (_OF_CONTROLLER, "-vipu-proxy"):
            if self.workload is not None and self.name.endswith(ending):
                return self.name.removesuffix(ending) + "-"
        return ""

    @property
    def webhook(self) -> str:
        """The name of the operator's webhook configurations, and of their Secret and Service."""
        return f"{self.prefix}webhook" if self.prefix else "muster-ipujob"


def find_parts(workloads: Iterable[Workload], accounts: Iterable[tuple[str, str]]) -> tuple[InstalledPart, ...]:
    """accounts: (namespace, name) of service accounts, used for parts without a workload."""
    found = [
        InstalledPart(
            kind=kind,
            namespace=each.metadata.namespace,
            account=each.spec.template.spec.service_account_name,
            name=each.metadata.name,
            version=each.metadata.labels.get(VERSION, ""),
            workload=each,
        )
        for each in workloads
        if (kind := each.metadata.labels.get(COMPONENT, "")) in ACCOUNTS
    ]
    known = {part.kind for part in found}
    kinds = {name: kind for kind, name in ACCOUNTS.items()}
    found += [
        InstalledPart(kind=kinds[name], namespace=namespace, account=name)
        for namespace, name in accounts
        if name in kinds and kinds[name] not in known
    ]
    return tuple(sorted(found, key=lambda part: (list(ACCOUNTS).index(part.kind), part.namespace, part.name)))


def judge(
    parts: Sequence[InstalledPart],
    pods: Mapping[str, Sequence[PodFacts]],
    events: Mapping[str, Sequence[EventFacts]],
    version: str,
) -> list[DoctorFinding]:
    """pods: of each Deployment, by ``namespace/name``; events: warnings by namespace; version: of this command.

    Agents are judged node by node (:mod:`muster_cli.doctor.judges.agents`).
    """
    if not parts:
        return [DoctorFinding(AREA, Verdict.FAIL, "no part of Muster is installed in this cluster", INSTALL)]
    found: list[DoctorFinding] = []
    for part in parts:
        if part.workload is None or part.kind == AGENT:
            continue
        wanted, ready = part.workload.spec.replicas, part.workload.status.ready_replicas
        where = f"{part.kind} (Deployment {part.namespace}/{part.name})"
        own = pods.get(f"{part.namespace}/{part.name}", ())
        if wanted == 0:
            mend = f"kubectl -n {part.namespace} scale deployment/{part.name} --replicas 1"
            found.append(DoctorFinding(AREA, Verdict.FAIL, f"{where} is scaled to 0", mend))
        elif ready < wanted:
            why = next((why for pod in own if (why := describe_trouble(pod, events.get(part.namespace, ())))), "")
            why = why or _of_workload(part.name, events.get(part.namespace, ())) or "no pod has a reason"
            verdict = Verdict.WARN if ready else Verdict.FAIL
            mend = f"kubectl -n {part.namespace} describe deployment,pods -l app=muster-{part.kind}"
            found.append(
                DoctorFinding(AREA, verdict, f"{where}: {ready} of {plural(wanted, 'pod')} ready: {why}", mend)
            )
    odd = {f"{part.kind} {part.version}" for part in parts if part.version and part.version != version}
    if odd:
        what = f"this command has version {version}, but the cluster runs {', '.join(sorted(odd))}"
        found.append(
            DoctorFinding(AREA, Verdict.WARN, what, "upgrade the older of the two: helm upgrade, or this command")
        )
    outside = [part.kind for part in parts if part.workload is None]
    installed = [f"{part.kind} in {part.namespace}" for part in parts]
    if not found:
        which = "all" if len(outside) == len(parts) else ", ".join(outside)
        note = f"; not started by the chart: {which}" if outside else ""
        found.append(DoctorFinding(AREA, Verdict.PASS, f"{', '.join(installed)}{note}"))
    return found


def describe_trouble(pod: PodFacts, events: Iterable[EventFacts]) -> str:
    """Why the pod is not ready, in one line; empty if it is ready."""
    if pod.status.ready:
        return ""
    containers = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    reason = _condition(pod) or next((why for each in containers if (why := _state(each))), "")
    last = max(
        (each for each in events if each.involved_object.name == pod.metadata.name), key=lambda e: e.at, default=None
    )
    event = f"{last.reason}: {last.message}" if last is not None and last.message not in reason else ""
    phase = f"{pod.status.reason or pod.status.phase}{f': {pod.status.message}' if pod.status.message else ''}"
    return shorten("; ".join(part for part in (reason, event) if part) or phase or "no reason given", 400)


def _condition(pod: PodFacts) -> str:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False":
            return f"{each.reason}: {each.message}"
    return ""


def _state(container: ContainerFacts) -> str:
    waiting, ended = container.state.waiting, container.state.terminated or container.last_state.terminated
    parts = []
    if waiting is not None and waiting.reason not in ("", "PodInitializing", "ContainerCreating"):
        parts.append(_describe(waiting.reason, waiting.message))
    if ended is not None and (ended.exit_code or ended.reason not in ("", "Completed")):
        parts.append(_describe(f"{ended.reason or 'Error'}, exit code {ended.exit_code}", ended.message))
    return f"container {container.name}: {'; '.join(parts)}" if parts else ""


def _describe(word: str, message: str) -> str:
    return f"{word}: {message}" if message else word


def _of_workload(name: str, events: Iterable[EventFacts]) -> str:
    """Why no pods are created, such as quota or admission. The name of a ReplicaSet begins with its Deployment's."""
    of_it = (each for each in events if each.involved_object.name.startswith(name) and each.reason == "FailedCreate")
    last = max(of_it, key=lambda each: each.at, default=None)
    return shorten(f"{last.reason}: {last.message}", 400) if last is not None else ""
