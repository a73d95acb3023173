"""What each part's service account may do, against what it needs: `rights.yaml`, made from the chart. Pure."""

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

AREA = "rights"
WEBHOOK, TRACKER = "WEBHOOK", "TRACKER"  # for names that follow from the release's name and the values
DEFAULT_TRACKER = "ipu-partitions-tracker"


class RightsRule(msgspec.Struct, frozen=True, rename="camel"):
    """where: in the whole cluster, in the part's own namespace, or in that of agent and tainter.

    unless: values of the chart that take it away; empty: it is always needed.
    """

    where: Literal["cluster", "own", "nodes"]
    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    unless: str = ""


@dataclass(frozen=True)
class Right:
    """One thing that one account has to be allowed. namespace: empty: in the whole cluster."""

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
    """By part."""
    text = resources.files("muster_cli.doctor").joinpath("rights.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=dict[str, tuple[RightsRule, ...]])


def list_rights(parts: Sequence[InstalledPart], tracker: str = DEFAULT_TRACKER) -> list[Right]:
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
            namespace={"cluster": "", "own": part.namespace, "nodes": nodes}[rule.where],
            name=renamed.get(name, name),
            unless=rule.unless,
        )
        for part in parts
        for rule in load_rules()[part.kind]
        if rule.where != "nodes" or nodes
        for name in rule.names or ("",)
        for verb in rule.verbs
    ]


def judge(rights: Sequence[Right], lacking: Iterable[Right], blind: ReadFailure | None = None) -> list[DoctorFinding]:
    """lacking: those that the API server refuses. blind: why it could not be asked.

    What a value of the chart takes away is missing on purpose, if all that belongs to that value is missing.
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
            "helm upgrade brings its roles back (rbac.create=true); "
            f"then: kubectl auth can-i {_can_i(of_it[0])} --as {user}",
        )
        for (part, user), of_it in missing.items()
    ]
    if found or not rights:
        return found
    less = f"; off by the chart's values: {', '.join(sorted({unless for _, unless in off}))}" if off else ""
    accounts = len({right.user for right in rights})
    return [
        DoctorFinding(AREA, Verdict.PASS, f"{accounts} accounts may do what they have to: {len(rights)} rights{less}")
    ]


def _can_i(right: Right) -> str:
    resource, sub = right.resource_and_sub
    kind = f"{resource}.{right.group}" if right.group else resource
    name = f"/{right.name}" if right.name else ""
    flags = f" --subresource {sub}" if sub else ""
    return f"{right.verb} {kind}{name}{flags}{f' -n {right.namespace}' if right.namespace else ''}"
