"""Compares the rights of each service account with those it needs: `rights.yaml`, generated from the chart. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import ApiResource
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, join_some, read_failures
from muster_cli.doctor.judges.parts import AGENT, OPERATOR, TAINTER, InstalledPart
from muster_cli.report.quantities import plural
from muster_tainter.policy.needed_rights import Allow, NeededRight

AREA = "rights"
WEBHOOK, TRACKER = "WEBHOOK", "TRACKER"  # placeholders for names that depend on the release and its values
DEFAULT_TRACKER = "ipu-partitions-tracker"


class RightsRule(msgspec.Struct, frozen=True, rename="camel"):
    """where: the whole cluster, the namespace of the part, the namespace of agent and tainter, those of the tainter's
    repairs or trials, or the namespaces of the jobs that the operator handles (by default the whole cluster).

    unless: the chart value that removes this right; empty if it is always needed.
    """

    where: Literal["cluster", "own", "nodes", "jobs", "repairs", "trials"]
    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    unless: str = ""


@dataclass(frozen=True)
class Right:
    """A right that an account needs. namespace: empty for the whole cluster. needed_by: a path in the policy; empty if
    the part needs it under any policy, or under none that is known."""

    part: str
    user: str
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    unless: str = ""
    needed_by: str = ""

    @property
    def resource_and_sub(self) -> tuple[str, str]:
        resource, _, sub = self.resource.partition("/")
        return resource, sub

    @property
    def words(self) -> str:
        of = f" {self.name}" if self.name else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{of}{f' in {self.namespace}' if self.namespace else ''}"


@cache
def load_rules() -> dict[str, tuple[RightsRule, ...]]:
    """The rules by part."""
    text = resources.files("muster_cli.doctor").joinpath("rights.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=dict[str, tuple[RightsRule, ...]])


def list_rights(
    parts: Sequence[InstalledPart],
    tracker: str = DEFAULT_TRACKER,
    scope: Sequence[str] = (),
    places: Mapping[str, str] = MappingProxyType({}),
) -> list[Right]:
    """scope: the operator's setting; empty: all namespaces. places: namespaces of the tainter's ``repairs`` and
    ``trials``, if they are not its own."""
    nodes = next((part.namespace for part in parts if part.kind in (TAINTER, AGENT)), "")
    webhook = next((part.webhook for part in parts if part.kind == OPERATOR), "")
    renamed = {WEBHOOK: webhook, TRACKER: tracker}
    shared = {"cluster": [""], "nodes": [nodes], "jobs": scope or [""]}
    return [
        Right(
            part=part.kind,
            user=f"system:serviceaccount:{part.namespace}:{part.account}",
            verb=verb,
            group=rule.group,
            resource=rule.resource,
            namespace=namespace,
            name=renamed.get(name, name),
            unless=rule.unless,
        )
        for part in parts
        for rule in load_rules()[part.kind]
        if rule.where != "nodes" or nodes
        for namespace in shared.get(rule.where, [places.get(rule.where, part.namespace)])
        for name in rule.names or ("",)
        for verb in rule.verbs
    ]


def policy_rights(
    tainter: InstalledPart, needed: Iterable[NeededRight], repairs_in: str, kinds: Mapping[tuple[str, str], ApiResource]
) -> list[Right]:
    """The rights that the active policy needs and no chart value grants. kinds: the resources of API version and kind;
    missing ones are not served."""
    found = []
    for each in needed:
        resource = kinds.get((each.api_version, each.kind))
        if each.allow is not Allow.OWN or resource is None or "$" in each.namespace:
            continue
        found += [
            Right(
                part=TAINTER,
                user=f"system:serviceaccount:{tainter.namespace}:{tainter.account}",
                verb=verb,
                group=each.api_version.rpartition("/")[0],
                resource=resource.name,
                namespace=(each.namespace or repairs_in) if resource.namespaced else "",
                needed_by=each.where,
            )
            for verb in ("get", "create", "delete")
        ]
    return found


def judge(
    rights: Sequence[Right],
    lacking: Iterable[Right],
    blind: ReadFailure | None = None,
    needed: Iterable[NeededRight] = (),
) -> list[DoctorFinding]:
    """lacking: rights that the API server denies. blind: why the API server could not be asked. needed: by the active
    policy.

    If all rights that one chart value controls are missing and the policy needs none of them, they are taken as
    switched off on purpose.
    """
    by_value: dict[str, str] = {}
    for each in needed:
        if each.allow is not Allow.OWN:
            by_value.setdefault(f"tainter.allow.{each.allow}=false", each.where)
    if blind is not None:
        return read_failures(AREA, blind)
    of_value: dict[tuple[str, str], list[Right]] = defaultdict(list)
    # a right in one namespace is there, whatever the value, if the account has it in the whole cluster
    everywhere = {_what(right) for right in rights if not (right.unless or right.namespace)}
    for right in rights:
        if right.unless and _what(right) not in everywhere:
            of_value[right.part, right.unless].append(right)
    gone = set(lacking)
    off = {key for key, all_of_it in of_value.items() if gone.issuperset(all_of_it) and key[1] not in by_value}
    missing: dict[tuple[str, str, str, str], list[Right]] = defaultdict(list)
    for right in sorted(gone, key=lambda right: right.words):
        if (right.part, right.unless) not in off:
            value = right.unless if right.unless in by_value else ""
            missing[right.part, right.user, value, right.needed_by or by_value.get(value, "")].append(right)
    found = [
        DoctorFinding(
            AREA,
            Verdict.FAIL,
            f"{part}: {user.removeprefix('system:serviceaccount:')} may not "
            + join_some(right.words for right in of_it)
            + (f", which the policy needs: {where}" if where else ""),
            f"{_mend(value, where)}; to verify: kubectl auth can-i {_can_i(of_it[0])} --as {user}",
        )
        for (part, user, value, where), of_it in missing.items()
    ]
    if found or not rights:
        return found
    less = f"; not granted, by chart values: {', '.join(sorted({unless for _, unless in off}))}" if off else ""
    accounts = len({right.user for right in rights})
    return [
        DoctorFinding(
            AREA, Verdict.PASS, f"{plural(accounts, 'service account')}: all of {len(rights)} rights granted{less}"
        )
    ]


def _what(right: Right) -> tuple[str, ...]:
    return right.user, right.verb, right.group, right.resource, right.name


def _mend(value: str, where: str) -> str:
    if value:
        return f"helm upgrade with the policy in tainter.policy, or with {value.replace('=false', '=true')}"
    if where:
        return "bind the account to a role of yours (docs/policy.md)"
    return "helm upgrade restores the roles (rbac.create=true)"


def _can_i(right: Right) -> str:
    resource, sub = right.resource_and_sub
    kind = f"{resource}.{right.group}" if right.group else resource
    name = f"/{right.name}" if right.name else ""
    flags = f" --subresource {sub}" if sub else ""
    return f"{right.verb} {kind}{name}{flags}{f' -n {right.namespace}' if right.namespace else ''}"
