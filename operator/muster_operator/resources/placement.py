"""Where a job's pods may go: nodes that reach their IPUs, and healthy ones only.

A taint is tolerated by a toleration of everything, and Kubernetes knows no "but not this one". So pods are kept off by
node affinity, too: ``muster.dev/faulty`` stands as a label exactly while a taint of ours does. What the template says
is kept; tolerations of our keys by name are taken out, a toleration of everything stays for the taints of others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UnsetType

from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob

FAULTY = "muster.dev/faulty"
HEALTH = "muster.dev/health"
_PREFERENCE = 100  # the most there is: a node with a warning is for when there is no other

Terms = list[dict[str, Any]]


def tolerates_faulty(job: IPUJob) -> bool:
    policy = job.spec.health_policy
    return not isinstance(policy, UnsetType) and policy.tolerate_faulty


def tolerations(users: Sequence[Mapping[str, Any]], setup: JobSetup, *, tolerate: bool) -> Terms:
    if tolerate:
        named = {each.get("key") for each in users if each.get("operator") == "Exists" and not each.get("effect")}
        added = [{"key": key, "operator": "Exists"} for key in setup.our_taints if key not in named]
        return [dict(each) for each in users] + added
    return [dict(each) for each in users if each.get("key") not in setup.our_taints]


def node_affinity(users: Mapping[str, Any], *, tolerate: bool, avoid: Iterable[str] = ()) -> dict[str, Any]:
    """The template's nodeAffinity and ours. Its required terms are alternatives: ours goes into each of them. avoid:
    names of nodes."""
    found = dict(users)
    # by the name of a node Kubernetes takes one value a requirement
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in avoid]
    labels = [] if tolerate else [{"key": FAULTY, "operator": "DoesNotExist"}]
    ours = {key: found for key, found in (("matchExpressions", labels), ("matchFields", fields)) if found}
    if ours:
        required = found.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = required.get("nodeSelectorTerms")
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {
            **required,
            "nodeSelectorTerms": [_and(term, ours) for term in terms] if terms else [ours],
        }
    healthy = {"matchExpressions": [{"key": HEALTH, "operator": "NotIn", "values": ["fail", "warn"]}]}
    preferred = found.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    found["preferredDuringSchedulingIgnoredDuringExecution"] = [
        *preferred,
        {"weight": _PREFERENCE, "preference": healthy},
    ]
    return found


def conflict(users: Mapping[str, str], selector: str) -> str:
    """selector: ``key=value`` of the nodes that reach a partition. Why the template's node selector excludes them; else
    empty (behaviour 25)."""
    key, _, value = selector.partition("=")
    if selector and users.get(key, value) != value:
        return f"nodeSelector of workers.template has {key}={users[key]}; its partition is reached from {selector} only"
    return ""


def node_selector(users: Mapping[str, str], selectors: Iterable[str]) -> dict[str, str]:
    """The template's, and those of the partitions where all of them agree. ``users`` wins; see :func:`conflict`."""
    found = set(selectors)
    if len(found) != 1:
        return dict(users)
    key, _, value = found.pop().partition("=")
    return {key: value, **users} if key else dict(users)


def _and(term: Mapping[str, Any], ours: Mapping[str, Terms]) -> dict[str, Any]:
    # an empty term matches no node, and would match some with ours in it
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return dict(term)
    return {**term, **{key: [*(term.get(key) or ()), *added] for key, added in ours.items()}}
