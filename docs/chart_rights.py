"""cli/muster_cli/doctor/rights.yaml: what each part may do by the chart's roles, and which values take some of it away.

`muster doctor` asks the API server for each of these. The chart is rendered as a whole and once for each such value:
what is missing then belongs to that value.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tests.chart.helm_render import PROGRAM, SHA256, Helm, Rendered, checked  # noqa: E402 - tests is no package of ours

FILE = ROOT / "cli" / "muster_cli" / "doctor" / "rights.yaml"
NOTE = "# made by `make generate` from the chart's roles (helm/muster/templates/*/rbac.yaml); edits are overwritten\n"
PREFIX = "gc-ipu-operator"
RENAMED = {f"{PREFIX}-webhook": "WEBHOOK", "ipu-partitions-tracker": "TRACKER"}
# doctor does not ask for it: its name depends on the release, and without it the proxy is not ready and says why
LISTS = f"{PREFIX}-vipu-controllers"
PARTS = {
    "muster-agent": "agent",
    "muster-tainter": "tainter",
    f"{PREFIX}-controller-manager": "operator",
    f"{PREFIX}-vipu-proxy": "vipu-proxy",
}
# values that take rights away, as --set has them
VALUES = (
    "tainter.allow.drain=false",
    "tainter.allow.trials=false",
    "tainter.allow.repairJobs=false",
    "tainter.allow.suspendJobs=false",
    "tainter.allow.devices=false",
    "ownNode.mode=policy,nodeKeys.mode=policy",
    "admissionWebhooks.patch.enabled=false",
    "ipuPods.enabled=false",
)
MOST = (  # the tainter has all its rights
    *("--set", "ownNode.mode=webhook,nodeKeys.mode=webhook"),
    *("--set", "tainter.allow.drain=true,tainter.allow.repairJobs=true,tainter.allow.trials=true"),
    *("--set", "tainter.allow.suspendJobs=true"),
    *("--set", "tainter.allow.devices=true"),
    *("--set", "ipuPods.enabled=true"),
)
PLACES = {"muster-repairs": "repairs", "muster-trials": "trials"}
BESIDE = {"admissionWebhooks.patch.enabled=false": "admissionWebhooks.certificateSecret=s"}
# what Kubernetes' own role holds
DELEGATOR = (("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews"))
# the operator's ClusterRole that admissionWebhooks.scope binds in single namespaces
JOBS = f"{PREFIX}-controller-manager-jobs"
Row = tuple[str, str, str, str, str, str]  # part, where, group, resource, name, verb


def rows(rendered: Rendered) -> set[Row]:
    roles = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each.get("rules", [])
        for each in rendered.objects
        if each["kind"] in ("Role", "ClusterRole")
    }
    found: set[Row] = set()
    for binding in (each for each in rendered.objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        namespace, kind, name = (
            binding["metadata"].get("namespace"),
            *(binding["roleRef"][key] for key in ("kind", "name")),
        )
        rules = roles.get((kind, namespace if kind == "Role" else None, name))
        for subject in binding["subjects"]:
            part = PARTS.get(subject["name"])
            if part is None:
                continue
            where = "cluster" if namespace is None else PLACES.get(namespace, "nodes")
            if namespace == subject["namespace"]:
                where = "own"
            where = "jobs" if name == JOBS else where
            if rules is None:
                if name != "system:auth-delegator":
                    raise SystemExit(f"helm/muster: {part} is bound to {name}, of which nobody here knows the rules")
                found |= {(part, where, group, resource, "", "create") for group, resource in DELEGATOR}
                continue
            for rule in rules:
                found |= {
                    (part, where, group, resource, RENAMED.get(named, named), verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for named in rule.get("resourceNames", [""])
                    for verb in rule["verbs"]
                    if named != LISTS
                }
    return found


def text() -> str:
    if (found := checked()) != SHA256:
        raise SystemExit(f"{PROGRAM} is not the helm that was pinned: sha256 {found}")
    with tempfile.TemporaryDirectory() as home:
        helm = Helm(Path(home))
        everything = rows(helm.template(*MOST))
        unless: dict[Row, str] = {}
        for value in VALUES:
            given = [value, *([BESIDE[value]] if value in BESIDE else [])]
            flags = [word for each in given for word in ("--set", each)]
            for row in everything - rows(helm.template(*MOST, *flags)):
                unless[row] = value
    made: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS.values()}
    grouped: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(everything):
        part, where, group, resource, name, verb = row
        grouped.setdefault((part, where, group, resource, name, unless.get(row, "")), []).append(verb)
    for (part, where, group, resource, name, value), verbs in grouped.items():
        rule: dict[str, Any] = {"where": where, "group": group, "resource": resource, "verbs": verbs}
        made[part].append(rule | ({"names": [name]} if name else {}) | ({"unless": value} if value else {}))
    lines = [NOTE.rstrip()]
    for part, rules in made.items():
        lines.append(f"{part}:")
        block = yaml.safe_dump(rules, default_flow_style=None, sort_keys=False, width=140)
        lines += [f"  {line}" for line in block.splitlines()]
    return "\n".join(lines) + "\n"
