"""Compares the rights of each service account with those it needs: `rights.yaml`, generated from the chart. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, join_some, read_failures
from muster_cli.doctor.parts import AGENT, OPERATOR, TAINTER, InstalledPart
from muster_cli.report.quantities import plural

AREA = "rights"
WEBHOOK, TRACKER = "WEBHOOK", "TRACKER"  # placeholders for names that depend on the release and its values
DEFAULT_TRACKER = "ipu-partitions-tracker"


class RightsRule(msgspec.Struct, frozen=True, rename="camel"):
    """where: the whole cluster, the namespace of the part, the namespace of agent and tainter, or the namespaces of
    the jobs that the operator handles (by default the whole cluster).

    unless: the chart value that removes this right; empty if it is always needed.
    """

    where: Literal["cluster", "own", "nodes", "jobs"]
    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    unless: str = ""


@dataclass(frozen=True)
class Right:
    """A right that an account needs. namespace: empty for the whole cluster."""

    part: str
    user: str
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    unless: str = ""

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
    parts: Sequence[InstalledPart], tracker: str = DEFAULT_TRACKER, scope: Sequence[str] = ()
) -> list[Right]:
    """scope: the operator's setting; empty: all namespaces."""
    nodes = next((part.namespace for part in parts if part.kind in (TAINTER, AGENT)), "")
    webhook = next((part.webhook for part in parts if part.kind == OPERATOR), "")
    renamed = {WEBHOOK: webhook, TRACKER: tracker}
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
        for namespace in {"cluster": [""], "own": [part.namespace], "nodes": [nodes], "jobs": scope or [""]}[rule.where]
        for name in rule.names or ("",)
        for verb in rule.verbs
    ]


def judge(rights: Sequence[Right], lacking: Iterable[Right], blind: ReadFailure | None = None) -> list[DoctorFinding]:
    """lacking: rights that the API server denies. blind: why the API server could not be asked.

    If all rights that one chart value controls are missing, they are taken as switched off on purpose.
    """
    if blind is not None:
        return read_failures(AREA, blind)
    of_value: dict[tuple[str, str], list[Right]] = defaultdict(list)
    for right in rights:
        if right.unless:
            of_value[right.part, right.unless].append(right)
    gone = set(lacking)
    off = {key for key, all_of_it in of_value.items() if gone.issuperset(all_of_it)}
    missing: dict[tuple[str, str], list[Right]] = defaultdict(list)
    for right in sorted(gone, key=lambda right: right.words):
        if (right.part, right.unless) not in off:
            missing[right.part, right.user].append(right)
    found = [
        DoctorFinding(
            AREA,
            Verdict.FAIL,
            f"{part}: {user.removeprefix('system:serviceaccount:')} may not "
            + join_some(right.words for right in of_it),
            "helm upgrade restores the roles (rbac.create=true); "
            f"to verify: kubectl auth can-i {_can_i(of_it[0])} --as {user}",
        )
        for (part, user), of_it in missing.items()
    ]
    if found or not rights:
        return found
    less = f"; switched off by chart values: {', '.join(sorted({unless for _, unless in off}))}" if off else ""
    accounts = len({right.user for right in rights})
    return [
        DoctorFinding(
            AREA, Verdict.PASS, f"{plural(accounts, 'service account')}: all of {len(rights)} rights granted{less}"
        )
    ]


def _can_i(right: Right) -> str:
    resource, sub = right.resource_and_sub
    kind = f"{resource}.{right.group}" if right.group else resource
    name = f"/{right.name}" if right.name else ""
    flags = f" --subresource {sub}" if sub else ""
    return f"{right.verb} {kind}{name}{flags}{f' -n {right.namespace}' if right.namespace else ''}"
