"""Reads the facts of each area and hands them to its judge. Thin: decides nothing that a judge could."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import TypeVar

import msgspec
import yaml

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor import agents, clocks, crds, ipus, leaders, parts, rights, settings, webhooks
from muster_cli.doctor.bounded_reads import Look
from muster_cli.doctor.facts import (
    Account,
    ApiGroups,
    Definition,
    EndpointSlice,
    EventFacts,
    HealthFacts,
    LeaseFacts,
    PodFacts,
    Service,
    TextMap,
    WebhookConfiguration,
    Workload,
)
from muster_cli.doctor.findings import Finding, Unseen, unseen
from muster_cli.doctor.parts import AGENT, OPERATOR, PROXY, TAINTER, Part
from muster_kube.api.objects import Node, Object
from muster_kube.nodehealth import PATH as HEALTHS
from muster_operator.job.partition_api import PartitionCapacity
from muster_tainter.pause import NAME as PAUSE_MAP
from muster_tainter.pause import PauseMap

ENDS_S = 60.0  # the whole of it, however slow the API server is
REVIEWS_AT_ONCE = 8
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_HOOKS = "/apis/admissionregistration.k8s.io/v1"
_KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
_OWN_NODE = "muster-own-node"
_NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
L = TypeVar("L", bound=Object)


@dataclass(frozen=True)
class Ground:
    """What all areas stand on. now: seconds since the epoch by the API server's clock. namespace: of agent and tainter.
    events: warnings, by namespace. blind: there may be parts that cannot be seen."""

    look: Look
    parts: tuple[Part, ...]
    now: float
    namespace: str
    events: Mapping[str, Sequence[EventFacts]] = field(default_factory=dict)
    blind: bool = False

    def part(self, kind: str) -> Part | None:
        return next((part for part in self.parts if part.kind == kind), None)


async def examine(look: Look, namespace: str | None, clock: Callable[[], float] = time.time) -> list[Finding]:
    """All findings, area by area. Ends within ``ENDS_S``; what has not answered by then is said to be UNKNOWN."""
    ends = asyncio.get_running_loop().time() + ENDS_S
    findings: list[Finding] = []
    try:
        async with asyncio.timeout(ENDS_S):
            server, here = _seconds(await look.date()), clock()
            now = here if server is None else server
            known, ground = await _ground(look, namespace, now)
    except TimeoutError:
        return [Finding(parts.AREA, Verdict.UNKNOWN, f"the API server has not answered within {ENDS_S:g} s")]
    findings += known
    areas: dict[str, Awaitable[list[Finding]]] = {
        parts.AREA: _parts(ground),
        settings.APIS: _apis(ground),
        crds.AREA: _crds(ground),
        rights.AREA: _rights(ground),
        agents.AREA: _nodes(ground, server, here),
        leaders.LEADERS: _leaders(ground),
        webhooks.WEBHOOKS: _webhooks(ground),
        ipus.AREA: _ipus(ground),
        leaders.PAUSE: _pause(ground),
        settings.POLICY: _policy(ground),
    }
    tasks = {area: asyncio.ensure_future(work) for area, work in areas.items()}
    left_s = ends - asyncio.get_running_loop().time()
    await asyncio.wait(tasks.values(), timeout=max(left_s, 0.0))
    for area, task in tasks.items():
        if task.done():
            findings += task.result()
        else:
            task.cancel()
            findings.append(Finding(area, Verdict.UNKNOWN, f"not all of it was answered within {ENDS_S:g} s"))
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return findings


def _seconds(date: str) -> float | None:
    """Of a Date header."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None


async def _ground(look: Look, given: str | None, now: float) -> tuple[list[Finding], Ground]:
    where = {"labelSelector": parts.SELECTOR}
    place = f"/namespaces/{given}" if given else ""
    said: list[Finding] = []
    workloads: list[Workload] = []
    accounts: list[tuple[str, str]] = []
    sets, deployments, found = await asyncio.gather(
        look.all(f"/apis/apps/v1{place}/daemonsets", Workload, where),
        look.all(f"/apis/apps/v1{place}/deployments", Workload, where),
        look.all(f"/api/v1{place}/serviceaccounts", Account),
    )
    for each in (sets, deployments):
        if isinstance(each, Unseen):
            said += unseen(parts.AREA, each)
        else:
            workloads += each
    if isinstance(found, Unseen):
        if not workloads:
            said += unseen(parts.AREA, found)
    else:
        accounts = [(each.metadata.namespace, each.metadata.name) for each in found]
    known = parts.parts_of(workloads, accounts)
    namespace = next((part.namespace for part in known if part.kind in (TAINTER, AGENT)), given or "")
    events: dict[str, Sequence[EventFacts]] = {}
    for name in {part.namespace for part in known}:
        warned = await look.all(f"/api/v1/namespaces/{name}/events", EventFacts, {"fieldSelector": "type=Warning"})
        events[name] = () if isinstance(warned, Unseen) else warned
    return said, Ground(look, known, now, namespace, events, blind=bool(said))


async def _parts(ground: Ground) -> list[Finding]:
    if ground.blind and not ground.parts:
        return []
    pods: dict[str, list[PodFacts]] = {}
    for part in ground.parts:
        if part.workload is not None and part.kind != AGENT:
            found = await ground.look.all(
                f"/api/v1/namespaces/{part.namespace}/pods", PodFacts, {"labelSelector": f"app=muster-{part.kind}"}
            )
            pods[f"{part.namespace}/{part.name}"] = [] if isinstance(found, Unseen) else found
    return parts.judge(ground.parts, pods, ground.events, version("passmuster"))


async def _apis(ground: Ground) -> list[Finding]:
    groups = await ground.look.one("/apis", ApiGroups)
    return settings.judge_apis(ground.parts, groups if groups is not None else ApiGroups())


async def _crds(ground: Ground) -> list[Finding]:
    from muster_sandbox.controlplane.install import crd_directory

    kinds = {part.kind for part in ground.parts}
    ours = {}
    for file in sorted(crd_directory().glob("*.yaml")):
        definition = msgspec.json.decode(msgspec.json.encode(yaml.safe_load(file.read_text())), type=Definition)
        ipu = definition.metadata.name.endswith(".graphcore.ai")
        if not ipu or OPERATOR in kinds:
            ours[definition.metadata.name] = definition
    names = list(ours)
    found = await asyncio.gather(*(ground.look.one(f"{_CRDS}/{name}", Definition) for name in names))
    return crds.judge(ours, dict(zip(names, found, strict=True)))


async def _rights(ground: Ground) -> list[Finding]:
    proxy = ground.part(PROXY)
    tracker = rights.DEFAULT_TRACKER
    if proxy is not None and proxy.workload is not None:
        path = f"/api/v1/namespaces/{proxy.namespace}/configmaps/{proxy.name}"
        tracker = _setting(await ground.look.one(path, TextMap), "proxy.yaml", "tracker") or tracker
    wanted = rights.rights_of(ground.parts, tracker)
    turn = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def ask(right: rights.Right) -> bool | Unseen:
        resource, sub = right.resource_and_sub
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": sub}
        async with turn:
            return await ground.look.may(right.user, attributes | {"namespace": right.namespace, "name": right.name})

    first = await ask(wanted[0]) if wanted else True
    if isinstance(first, Unseen):  # without the right to ask, no further question is any better
        return rights.judge(wanted, (), first)
    answers = await asyncio.gather(*map(ask, wanted))
    blind = next((each for each in answers if isinstance(each, Unseen)), None)
    return rights.judge(wanted, [right for right, may in zip(wanted, answers, strict=True) if not may], blind)


def _setting(found: TextMap | Unseen | None, key: str, name: str) -> str:
    if not isinstance(found, TextMap):
        return ""
    try:
        given = yaml.safe_load(found.data.get(key, ""))
    except yaml.YAMLError:
        return ""
    value = given.get(name) if isinstance(given, dict) else None
    return value if isinstance(value, str) else ""


async def _nodes(ground: Ground, server: float | None, here: float) -> list[Finding]:
    """Agents and clocks."""
    nodes, healths, leases = await asyncio.gather(
        ground.look.all("/api/v1/nodes", Node),
        ground.look.all(HEALTHS, HealthFacts),
        ground.look.all(_NODE_LEASES, LeaseFacts),
    )
    known = _by_name(healths)
    there = [] if isinstance(nodes, Unseen) else nodes
    found = clocks.judge(server, here, there, _by_name(leases), known)
    part = ground.part(AGENT)
    if part is None:
        return found
    place = f"/api/v1/namespaces/{part.namespace}/pods"
    pods = await ground.look.all(place, PodFacts, {"labelSelector": "app=muster-agent"})
    blind = [each for each in (nodes, pods, healths) if isinstance(each, Unseen)]
    if blind or isinstance(pods, Unseen):
        return [*unseen(agents.AREA, *blind), *found]
    events = ground.events.get(part.namespace, ())
    return [*agents.judge(there, part.workload, pods, events, known, ground.now), *found]


def _by_name(found: list[L] | Unseen) -> dict[str, L]:
    return {} if isinstance(found, Unseen) else {each.metadata.name: each for each in found}


async def _leaders(ground: Ground) -> list[Finding]:
    kinds = [part for part in ground.parts if part.kind in leaders.LEASES]
    held = await asyncio.gather(*(_held(ground, part) for part in kinds))
    return leaders.judge(ground.parts, {part.kind: each for part, each in zip(kinds, held, strict=True)}, ground.now)


async def _held(ground: Ground, part: Part) -> leaders.Held | Unseen | None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{part.namespace}/leases/{leaders.LEASES[part.kind]}"
    first = await ground.look.one(path, LeaseFacts)
    if not isinstance(first, LeaseFacts) or leaders.is_fresh(first, ground.now):
        return leaders.Held(first) if isinstance(first, LeaseFacts) else first
    for _ in range(int(leaders.LASTS_S)):
        await asyncio.sleep(1.0)
        again = await ground.look.one(path, LeaseFacts)
        if isinstance(again, LeaseFacts) and again.spec != first.spec:
            return leaders.Held(again, moved=bool(again.spec.holder_identity))
    return leaders.Held(first)


async def _webhooks(ground: Ground) -> list[Finding]:
    operator, tainter = ground.part(OPERATOR), ground.part(TAINTER)
    owners = {_OWN_NODE: tainter}
    expected: list[str] = []
    if operator is not None:
        owners[operator.webhook] = operator
        expected = [f"{kind}/{operator.webhook}" for kind in _KINDS]
    found: dict[str, WebhookConfiguration] = {}
    behind: dict[str, webhooks.Behind] = {}
    for kind, plural in _KINDS.items():
        listed = await ground.look.all(f"{_HOOKS}/{plural}", WebhookConfiguration)
        if isinstance(listed, Unseen):
            return unseen(webhooks.WEBHOOKS, listed)
        for each in listed:
            owner = owners.get(each.metadata.name)
            if owner is not None:
                key = f"{kind}/{each.metadata.name}"
                found[key] = each
                behind[key] = await _behind(ground, each, owner)
    return webhooks.judge(found, behind, expected, ground.now)


async def _behind(ground: Ground, configuration: WebhookConfiguration, owner: Part) -> webhooks.Behind:
    name = configuration.metadata.name
    secret = await ground.look.one(f"/api/v1/namespaces/{owner.namespace}/secrets/{name}", TextMap)
    place = next((each.client_config.service for each in configuration.webhooks if each.client_config.service), None)
    if place is None:
        return webhooks.Behind(owner.namespace, secret)
    chosen = {"labelSelector": f"kubernetes.io/service-name={place.name}"}
    slices: list[EndpointSlice] | Unseen = []
    for api in ("v1", "v1beta1"):
        path = f"/apis/discovery.k8s.io/{api}/namespaces/{place.namespace}/endpointslices"
        slices = await ground.look.all(path, EndpointSlice, chosen)
        if slices:
            break
    return webhooks.Behind(owner.namespace, secret, slices)


async def _ipus(ground: Ground) -> list[Finding]:
    part = ground.part(PROXY)
    if part is None or part.workload is None:  # started by other means: nobody knows where it listens
        return []
    place = f"/api/v1/namespaces/{part.namespace}"
    controllers = await ground.look.one(f"{place}/configmaps/{part.prefix}{ipus.MAP}", TextMap)
    service = await ground.look.one(f"{place}/services/{part.name}", Service)
    if service is None or isinstance(service, Unseen):
        why = service or Unseen(f"Service {part.namespace}/{part.name}", "it is not there")
        return ipus.judge(ipus.Vipu(part, controllers, health=why))
    by = f"{place}/services/{part.name}:{service.spec.ports[0].name if service.spec.ports else ''}/proxy"
    health = await ground.look.text(f"{by}/health")
    answer: PartitionCapacity | Unseen | None = None
    if isinstance(health, Unseen):
        health = health if health.forbidden else health.why
    else:
        health = ""
        asked = await ground.look.ask(f"{by}/query", {"size": 1}, PartitionCapacity)
        answer = asked if isinstance(asked, PartitionCapacity | Unseen) else None
    return ipus.judge(ipus.Vipu(part, controllers, health, answer))


async def _pause(ground: Ground) -> list[Finding]:
    if not ground.namespace:
        return []
    path = f"/api/v1/namespaces/{ground.namespace}/configmaps/{PAUSE_MAP}"
    return leaders.judge_pause(await ground.look.one(path, PauseMap), ground.now)


async def _policy(ground: Ground) -> list[Finding]:
    if not ground.namespace:
        return []
    path = f"/api/v1/namespaces/{ground.namespace}/configmaps/{settings.MAP}"
    return settings.judge_policy(ground.namespace, await ground.look.one(path, TextMap))
