"""Reads the facts of each area and passes them to its judge. Makes no judgement itself."""

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
from muster_cli.doctor.bounded_reads import BoundedReader
from muster_cli.doctor.device_reads import read_devices
from muster_cli.doctor.facts import (
    AccountFacts,
    ApiGroups,
    ApiResource,
    ApiResources,
    CrdFacts,
    DataMap,
    EndpointSlice,
    EventFacts,
    HealthFacts,
    PodFacts,
    Service,
    WebhookConfiguration,
    Workload,
)
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, read_failures
from muster_cli.doctor.judges import (
    agents,
    clocks,
    crds,
    devices,
    ipus,
    leaders,
    parts,
    reports,
    rights,
    settings,
    webhooks,
)
from muster_cli.doctor.judges.parts import AGENT, OPERATOR, PROXY, TAINTER, InstalledPart
from muster_kube.api.objects import Node, Object
from muster_kube.controller.lease import Lease
from muster_kube.nodehealth import PATH as HEALTHS
from muster_operator.job.partition_api import PartitionCapacity
from muster_tainter.pause import NAME as PAUSE_MAP
from muster_tainter.pause import PauseMap
from muster_tainter.policy.needed_rights import Allow, NeededRight

ENDS_S = 60.0  # limit for the whole examination
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
class Installation:
    """What all areas need. now: seconds since the epoch by the clock of the API server. namespace: of agent and
    tainter. events: warnings by namespace. blind: there may be parts that the user may not see. everywhere: all
    namespaces were looked at."""

    reader: BoundedReader
    parts: tuple[InstalledPart, ...]
    now: float
    namespace: str
    events: Mapping[str, Sequence[EventFacts]] = field(default_factory=dict)
    blind: bool = False
    everywhere: bool = True

    def part(self, kind: str) -> InstalledPart | None:
        return next((part for part in self.parts if part.kind == kind), None)


async def examine_installation(
    reader: BoundedReader, namespace: str | None, clock: Callable[[], float] = time.time
) -> list[DoctorFinding]:
    """All findings, by area. Ends within ``ENDS_S``; areas that are not finished by then are UNKNOWN."""
    ends = asyncio.get_running_loop().time() + ENDS_S
    findings: list[DoctorFinding] = []
    try:
        async with asyncio.timeout(ENDS_S):
            server, here = _seconds(await reader.server_date()), clock()
            now = here if server is None else server
            known, installation = await _find_installation(reader, namespace, now)
    except TimeoutError:
        return [DoctorFinding(parts.AREA, Verdict.UNKNOWN, f"the API server did not answer within {ENDS_S:g} s")]
    findings += known
    areas: dict[str, Awaitable[list[DoctorFinding]]] = {
        parts.AREA: _parts(installation),
        settings.APIS: _apis(installation),
        crds.AREA: _crds(installation),
        rights.AREA: _rights(installation),
        agents.AREA: _nodes(installation, server, here),
        leaders.LEADERS: _leaders(installation),
        webhooks.WEBHOOKS: _webhooks(installation),
        ipus.AREA: _ipus(installation),
        devices.AREA: _devices(installation),
        leaders.PAUSE: _pause(installation),
        settings.POLICY: _policy(installation),
    }
    tasks = {area: asyncio.ensure_future(work) for area, work in areas.items()}
    left_s = ends - asyncio.get_running_loop().time()
    await asyncio.wait(tasks.values(), timeout=max(left_s, 0.0))
    for area, task in tasks.items():
        if task.done():
            findings += task.result()
        else:
            task.cancel()
            findings.append(DoctorFinding(area, Verdict.UNKNOWN, f"not finished within {ENDS_S:g} s"))
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return findings


def _seconds(date: str) -> float | None:
    """The time of a Date header; None if it is not one."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None


async def _find_installation(
    reader: BoundedReader, given: str | None, now: float
) -> tuple[list[DoctorFinding], Installation]:
    where = {"labelSelector": parts.SELECTOR}
    place = f"/namespaces/{given}" if given else ""
    findings: list[DoctorFinding] = []
    workloads: list[Workload] = []
    accounts: list[tuple[str, str]] = []
    sets, deployments, found = await asyncio.gather(
        reader.list(f"/apis/apps/v1{place}/daemonsets", Workload, where),
        reader.list(f"/apis/apps/v1{place}/deployments", Workload, where),
        reader.list(f"/api/v1{place}/serviceaccounts", AccountFacts),
    )
    for each in (sets, deployments):
        if isinstance(each, ReadFailure):
            findings += read_failures(parts.AREA, each)
        else:
            workloads += each
    if isinstance(found, ReadFailure):
        if not workloads:
            findings += read_failures(parts.AREA, found)
    else:
        accounts = [(each.metadata.namespace, each.metadata.name) for each in found]
    known = parts.find_parts(workloads, accounts)
    namespace = next((part.namespace for part in known if part.kind in (TAINTER, AGENT)), given or "")
    events: dict[str, Sequence[EventFacts]] = {}
    for name in {part.namespace for part in known}:
        warned = await reader.list(f"/api/v1/namespaces/{name}/events", EventFacts, {"fieldSelector": "type=Warning"})
        events[name] = () if isinstance(warned, ReadFailure) else warned
    return findings, Installation(reader, known, now, namespace, events, blind=bool(findings), everywhere=not given)


async def _parts(installation: Installation) -> list[DoctorFinding]:
    if installation.blind and not installation.parts:
        return []
    pods: dict[str, list[PodFacts]] = {}
    for part in installation.parts:
        if part.workload is not None and part.kind != AGENT:
            found = await installation.reader.list(
                f"/api/v1/namespaces/{part.namespace}/pods", PodFacts, {"labelSelector": f"app=muster-{part.kind}"}
            )
            pods[f"{part.namespace}/{part.name}"] = [] if isinstance(found, ReadFailure) else found
    return parts.judge(installation.parts, pods, installation.events, version("passmuster"))


async def _apis(installation: Installation) -> list[DoctorFinding]:
    groups = await installation.reader.read("/apis", ApiGroups)
    return settings.judge_apis(installation.parts, groups if groups is not None else ApiGroups())


async def _crds(installation: Installation) -> list[DoctorFinding]:
    from muster_sandbox.controlplane.install import crd_directory

    kinds = {part.kind for part in installation.parts}
    ours = {}
    for file in sorted(crd_directory().glob("*.yaml")):
        definition = msgspec.json.decode(msgspec.json.encode(yaml.safe_load(file.read_text())), type=CrdFacts)
        ipu = definition.metadata.name.endswith(".graphcore.ai")
        if not ipu or OPERATOR in kinds:
            ours[definition.metadata.name] = definition
    names = list(ours)
    found = await asyncio.gather(*(installation.reader.read(f"{_CRDS}/{name}", CrdFacts) for name in names))
    return crds.judge(ours, dict(zip(names, found, strict=True)))


async def _rights(installation: Installation) -> list[DoctorFinding]:
    proxy = installation.part(PROXY)
    tracker = rights.DEFAULT_TRACKER
    if proxy is not None and proxy.workload is not None:
        path = f"/api/v1/namespaces/{proxy.namespace}/configmaps/{proxy.name}"
        found = _setting(await installation.reader.read(path, DataMap), "proxy.yaml", "tracker")
        tracker = found if isinstance(found, str) and found else tracker
    operator, scope = installation.part(OPERATOR), list[str]()
    if operator is not None and operator.workload is not None:
        path = f"/api/v1/namespaces/{operator.namespace}/configmaps/{operator.name}"
        found = _setting(await installation.reader.read(path, DataMap), "operator.yaml", "scope")
        scope = [each for each in found if isinstance(each, str)] if isinstance(found, list) else scope
    places, needed, more = await _policy_rights(installation)
    wanted = rights.list_rights(installation.parts, tracker, scope, places) + more
    turn = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def ask(right: rights.Right) -> bool | ReadFailure:
        resource, sub = right.resource_and_sub
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": sub}
        async with turn:
            return await installation.reader.is_allowed(
                right.user, attributes | {"namespace": right.namespace, "name": right.name}
            )

    first = await ask(wanted[0]) if wanted else True
    if isinstance(first, ReadFailure):  # without the right to ask, more questions fail the same way
        return rights.judge(wanted, (), first)
    answers = await asyncio.gather(*map(ask, wanted))
    blind = next((each for each in answers if isinstance(each, ReadFailure)), None)
    return rights.judge(wanted, [right for right, may in zip(wanted, answers, strict=True) if not may], blind, needed)


async def _policy_rights(
    installation: Installation,
) -> tuple[dict[str, str], list[NeededRight], list[rights.Right]]:
    """The tainter's namespaces for repairs and trials; what its active policy needs; the rights of that which the chart
    does not grant."""
    tainter = installation.part(TAINTER)
    if tainter is None:
        return {}, [], []
    place = f"/api/v1/namespaces/{tainter.namespace}/configmaps"
    own = await installation.reader.read(f"{place}/{settings.TAINTER_MAP}", DataMap)
    names = {"repairs": "repair_namespace", "trials": "trials_namespace"}
    given = {where: _setting(own, settings.TAINTER_KEY, name) for where, name in names.items()}
    places = {where: found for where, found in given.items() if isinstance(found, str) and found}
    repairs_in = places.get("repairs", tainter.namespace)
    needed = settings.list_needed_rights(await installation.reader.read(f"{place}/{settings.MAP}", DataMap), repairs_in)
    kinds: dict[tuple[str, str], ApiResource] = {}
    for api_version, kind in {(each.api_version, each.kind) for each in needed if each.allow is Allow.OWN}:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        served = await installation.reader.read(path, ApiResources)
        for each in served.resources if isinstance(served, ApiResources) else ():
            if each.kind == kind and "/" not in each.name:
                kinds[api_version, kind] = each
    return places, needed, rights.policy_rights(tainter, needed, repairs_in, kinds)


def _setting(found: DataMap | ReadFailure | None, key: str, name: str) -> object:
    """The value of the setting ``name``; None if it is unknown."""
    if not isinstance(found, DataMap):
        return None
    try:
        given = yaml.safe_load(found.data.get(key, ""))
    except yaml.YAMLError:
        return None
    return given.get(name) if isinstance(given, dict) else None


async def _nodes(installation: Installation, server: float | None, here: float) -> list[DoctorFinding]:
    """The areas agents, reports and clocks, and the numbers of IPUs, which read the same objects."""
    nodes, healths, leases = await asyncio.gather(
        installation.reader.list("/api/v1/nodes", Node),
        installation.reader.list(HEALTHS, HealthFacts),
        installation.reader.list(_NODE_LEASES, Lease),
    )
    known = _by_name(healths)
    there = [] if isinstance(nodes, ReadFailure) else nodes
    found = [*reports.judge(known), *clocks.judge(server, here, there, _by_name(leases), known)]
    forms = await _advertised_forms(installation)
    found += ipus.judge_numbers(there, forms) if forms is not None else []
    part = installation.part(AGENT)
    if part is None:
        return found
    place = f"/api/v1/namespaces/{part.namespace}/pods"
    pods = await installation.reader.list(place, PodFacts, {"labelSelector": "app=muster-agent"})
    blind = [each for each in (nodes, pods, healths) if isinstance(each, ReadFailure)]
    if blind or isinstance(pods, ReadFailure):
        return [*read_failures(agents.AREA, *blind), *found]
    events = installation.events.get(part.namespace, ())
    return [*agents.judge(there, part.workload, pods, events, known, installation.now), *found]


async def _advertised_forms(installation: Installation) -> set[object] | None:
    """The setting ipu_visibility of all operators; None if there may be one whose setting is unknown."""
    if installation.blind or not installation.everywhere:
        return None
    forms: set[object] = set()
    for part in installation.parts:
        if part.kind == OPERATOR:
            path = f"/api/v1/namespaces/{part.namespace}/configmaps/{part.name}"
            found = await installation.reader.read(path, DataMap) if part.workload is not None else None
            if not isinstance(found, DataMap):
                return None
            forms.add(_setting(found, "operator.yaml", "ipu_visibility"))
    return forms


def _by_name(found: list[L] | ReadFailure) -> dict[str, L]:
    return {} if isinstance(found, ReadFailure) else {each.metadata.name: each for each in found}


async def _leaders(installation: Installation) -> list[DoctorFinding]:
    kinds = [part for part in installation.parts if part.kind in leaders.LEASES]
    held = await asyncio.gather(*(_observe_lease(installation, part) for part in kinds))
    return leaders.judge(
        installation.parts, {part.kind: each for part, each in zip(kinds, held, strict=True)}, installation.now
    )


async def _observe_lease(installation: Installation, part: InstalledPart) -> leaders.ObservedLease | ReadFailure | None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{part.namespace}/leases/{leaders.LEASES[part.kind]}"
    first = await installation.reader.read(path, Lease)
    if not isinstance(first, Lease) or leaders.is_fresh(first, installation.now):
        return leaders.ObservedLease(first) if isinstance(first, Lease) else first
    for _ in range(int(leaders.LASTS_S)):
        await asyncio.sleep(1.0)
        again = await installation.reader.read(path, Lease)
        if isinstance(again, Lease) and again.spec != first.spec:
            return leaders.ObservedLease(again, moved=bool(again.spec.holder_identity))
    return leaders.ObservedLease(first)


async def _webhooks(installation: Installation) -> list[DoctorFinding]:
    operator, tainter = installation.part(OPERATOR), installation.part(TAINTER)
    owners = {_OWN_NODE: tainter}
    expected: list[str] = []
    if operator is not None:
        owners[operator.webhook] = operator
        expected = [f"{kind}/{operator.webhook}" for kind in _KINDS]
    found: dict[str, WebhookConfiguration] = {}
    behind: dict[str, webhooks.WebhookBackend] = {}
    for kind, plural in _KINDS.items():
        listed = await installation.reader.list(f"{_HOOKS}/{plural}", WebhookConfiguration)
        if isinstance(listed, ReadFailure):
            return read_failures(webhooks.WEBHOOKS, listed)
        for each in listed:
            owner = owners.get(each.metadata.name)
            if owner is not None:
                key = f"{kind}/{each.metadata.name}"
                found[key] = each
                behind[key] = await _read_backend(installation, each, owner)
    return webhooks.judge(found, behind, expected, installation.now)


async def _read_backend(
    installation: Installation, configuration: WebhookConfiguration, owner: InstalledPart
) -> webhooks.WebhookBackend:
    name = configuration.metadata.name
    secret = await installation.reader.read(f"/api/v1/namespaces/{owner.namespace}/secrets/{name}", DataMap)
    place = next((each.client_config.service for each in configuration.webhooks if each.client_config.service), None)
    if place is None:
        return webhooks.WebhookBackend(owner.namespace, secret)
    chosen = {"labelSelector": f"kubernetes.io/service-name={place.name}"}
    slices: list[EndpointSlice] | ReadFailure = []
    for api in ("v1", "v1beta1"):
        path = f"/apis/discovery.k8s.io/{api}/namespaces/{place.namespace}/endpointslices"
        slices = await installation.reader.list(path, EndpointSlice, chosen)
        if slices:
            break
    return webhooks.WebhookBackend(owner.namespace, secret, slices)


async def _ipus(installation: Installation) -> list[DoctorFinding]:
    part = installation.part(PROXY)
    if part is None or part.workload is None:  # started without the chart: its address is not known
        return []
    place = f"/api/v1/namespaces/{part.namespace}"
    controllers = await installation.reader.read(f"{place}/configmaps/{part.prefix}{ipus.MAP}", DataMap)
    service = await installation.reader.read(f"{place}/services/{part.name}", Service)
    if service is None or isinstance(service, ReadFailure):
        why = service or ReadFailure(f"Service {part.namespace}/{part.name}", "it does not exist")
        return ipus.judge(ipus.VipuState(part, controllers, health=why))
    by = f"{place}/services/{part.name}:{service.spec.ports[0].name if service.spec.ports else ''}/proxy"
    health = await installation.reader.read_text(f"{by}/health")
    answer: PartitionCapacity | ReadFailure | None = None
    if isinstance(health, ReadFailure):
        health = health if health.forbidden else health.why
    else:
        health = ""
        reply = await installation.reader.post(f"{by}/query", {"size": 1}, PartitionCapacity)
        answer = reply if isinstance(reply, PartitionCapacity | ReadFailure) else None
    return ipus.judge(ipus.VipuState(part, controllers, health, answer))


async def _devices(installation: Installation) -> list[DoctorFinding]:
    policy = await _read_policy(installation) if installation.namespace else None
    return devices.judge(await read_devices(installation.reader, settings.find_device_mode(policy), installation.now))


async def _pause(installation: Installation) -> list[DoctorFinding]:
    if not installation.namespace:
        return []
    path = f"/api/v1/namespaces/{installation.namespace}/configmaps/{PAUSE_MAP}"
    return leaders.judge_pause(await installation.reader.read(path, PauseMap), installation.now)


async def _policy(installation: Installation) -> list[DoctorFinding]:
    if not installation.namespace:
        return []
    return settings.judge_policy(installation.namespace, await _read_policy(installation))


async def _read_policy(installation: Installation) -> DataMap | ReadFailure | None:
    if not installation.namespace:
        return None
    path = f"/api/v1/namespaces/{installation.namespace}/configmaps/{settings.MAP}"
    return await installation.reader.read(path, DataMap)
