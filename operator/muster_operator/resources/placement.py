"""Placement of a job's pods: only on healthy nodes that reach their IPUs.

A toleration of everything also tolerates our taints, and Kubernetes cannot exclude single taints from it. So the pods
also avoid faulty nodes and spares by node affinity: the labels ``muster.dev/faulty`` and ``muster.dev/role`` say what
the taints say. Jobs that tolerate faulty nodes avoid spares too. The rest of the template is kept; tolerations that
name our keys are removed, and a toleration of everything stays for other taints.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UnsetType

from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob

FAULTY = "muster.dev/faulty"
HEALTH = "muster.dev/health"
ROLE = "muster.dev/role"  # of a spare, and of a spare that was released for a node with a fault
NOT_FAULTY: dict[str, Any] = {"key": FAULTY, "operator": "DoesNotExist"}
NOT_SPARE: dict[str, Any] = {"key": ROLE, "operator": "NotIn", "values": ["spare"]}
_PREFERENCE = 100  # the maximum weight: a node with a warning is used only if there is no other
_TESTED = 50  # less: a released spare was tested lately, but a warning is newer

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


def node_affinity(
    users: Mapping[str, Any], *, tolerate: bool, avoid: Iterable[str] = (), moved: bool = False
) -> dict[str, Any]:
    """Combines the template's nodeAffinity with ours. Its required terms are alternatives, so ours is added to each of
    them. avoid: names of nodes; moved: prefer spares that were released for a node with a fault."""
    found = dict(users)
    # a requirement on metadata.name allows only one value
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in avoid]
    labels: Terms = [NOT_SPARE] if tolerate else [NOT_FAULTY, NOT_SPARE]
    ours = {"matchExpressions": labels, **({"matchFields": fields} if fields else {})}
    required = found.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    found["requiredDuringSchedulingIgnoredDuringExecution"] = {
        **required,
        "nodeSelectorTerms": [_and(term, ours) for term in terms] if terms else [ours],
    }
    healthy = {"matchExpressions": [{"key": HEALTH, "operator": "NotIn", "values": ["fail", "warn"]}]}
    released = {"matchExpressions": [{"key": ROLE, "operator": "In", "values": ["replacement"]}]}
    preferred = found.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    found["preferredDuringSchedulingIgnoredDuringExecution"] = [
        *preferred,
        {"weight": _PREFERENCE, "preference": healthy},
        *([{"weight": _TESTED, "preference": released}] if moved else []),
    ]
    return found


def conflict(users: Mapping[str, str], selector: str) -> str:
    """Why the template's node selector excludes the nodes that reach a partition; empty if it does not (behaviour 25).
    selector: ``key=value`` of these nodes."""
    key, _, value = selector.partition("=")
    if selector and users.get(key, value) != value:
        return f"workers.template has the nodeSelector {key}={users[key]}; its partition needs {selector}"
    return ""


def node_selector(users: Mapping[str, str], selectors: Iterable[str]) -> dict[str, str]:
    """The template's node selector and that of the partitions, if all of them agree. ``users`` wins; see
    :func:`conflict`."""
    found = set(selectors)
    if len(found) != 1:
        return dict(users)
    key, _, value = found.pop().partition("=")
    return {key: value, **users} if key else dict(users)


def _and(term: Mapping[str, Any], ours: Mapping[str, Terms]) -> dict[str, Any]:
    # an empty term matches no node, but would match some after the addition
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return dict(term)
    return {**term, **{key: [*(term.get(key) or ()), *added] for key, added in ours.items()}}
