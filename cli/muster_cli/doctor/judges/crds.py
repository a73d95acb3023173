"""Compares the CRDs of the cluster with those of this release. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import CrdFacts, CrdVersion
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, join_some, read_failures

AREA = "crds"
_MEND = "helm upgrade (crds.upgrade), or: kubectl apply -f helm/muster/crds"
_WORDS = frozenset({"description", "title", "example", "externalDocs"})  # without effect on validation


def judge(ours: Mapping[str, CrdFacts], theirs: Mapping[str, CrdFacts | ReadFailure | None]) -> list[DoctorFinding]:
    """ours: CRDs of this release, by name. theirs: those of the cluster; None if missing."""
    found: list[DoctorFinding] = []
    for name, wanted in sorted(ours.items()):
        there = theirs.get(name)
        if isinstance(there, ReadFailure):
            found += read_failures(AREA, there)
        elif there is None:
            found.append(DoctorFinding(AREA, Verdict.FAIL, f"{name} is missing", _MEND))
        else:
            found += _judge_one(name, wanted, there)
    if not found:
        found = [DoctorFinding(AREA, Verdict.PASS, f"{', '.join(sorted(ours))}: up to date")]
    return found


def _judge_one(name: str, ours: CrdFacts, theirs: CrdFacts) -> Iterator[DoctorFinding]:
    for condition in theirs.status.conditions:
        if condition.type in ("Established", "NamesAccepted") and condition.status != "True":
            what = f"{name} is not served: {condition.type} is {condition.status}: {condition.message}"
            yield DoctorFinding(AREA, Verdict.FAIL, what, f"kubectl describe crd {name}")
    there = {version.name: version for version in theirs.spec.versions}
    for wanted in ours.spec.versions:
        version = there.get(wanted.name)
        if version is None or not version.served:
            what = f"{name} does not serve version {wanted.name}, which this release uses"
            yield DoctorFinding(AREA, Verdict.FAIL, what, _MEND)
            continue
        yield from _schemas(name, _leaves(wanted), _leaves(version))
    dead = set(theirs.status.stored_versions) - {version.name for version in theirs.spec.versions if version.served}
    if dead:
        what = f"{name}: status.storedVersions has versions that are no longer served: {', '.join(sorted(dead))}"
        yield DoctorFinding(
            AREA,
            Verdict.WARN,
            what,
            "rewrite all objects (kubectl get and replace), then remove the versions from status.storedVersions",
        )


def _schemas(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[DoctorFinding]:
    lacks = {path for path, value in ours.items() if theirs.get(path) != value}
    if lacks:
        what = f"{name} is older than this release or was edited: it differs in {join_some(map(_field, lacks))}"
        yield DoctorFinding(AREA, Verdict.FAIL, what, _MEND)
        return
    more = set(theirs) - set(ours)
    if more:
        what = f"{name} is newer than this command: it also has {join_some(map(_field, more))}"
        yield DoctorFinding(AREA, Verdict.WARN, what, "use the muster command of the installed release")


def _field(path: str) -> str:
    """The field of a path in the schema, such as ``spec.workers.template``."""
    words = path.split("/")
    kept = [word for before, word in zip(["", *words], words, strict=False) if before == "properties"]
    return ".".join(kept) or path.strip("/")


def _leaves(version: CrdVersion) -> dict[str, str]:
    schema = msgspec.json.decode(version.schema)
    return dict(_walk(schema, ""))


def _walk(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            # a field may have the name of a schema keyword
            if key not in _WORDS or path.endswith("/properties"):
                yield from _walk(value, f"{path}/{key}")
    elif isinstance(node, list) and node and all(isinstance(each, str) for each in node):
        yield from ((f"{path}/{each}", "listed") for each in node)
    elif node not in ([], False, None):  # the API server drops empty values
        yield path, msgspec.json.encode(node).decode()
