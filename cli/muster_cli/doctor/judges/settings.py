"""Judges the active policy, and whether the API server serves the versions that the parts use. Pure."""

from collections.abc import Sequence

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import ApiGroups, DataMap
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, read_failures
from muster_cli.doctor.judges.parts import AGENT, OPERATOR, TAINTER, InstalledPart
from muster_cli.report.quantities import plural
from muster_tainter.policy.file import PolicyError, parse_policy
from muster_tainter.policy.needed_rights import NeededRight, needed_rights

POLICY, APIS = "policy", "apis"
MAP, KEY = "muster-policy", "policy.yaml"
TAINTER_MAP, TAINTER_KEY = "muster-tainter", "tainter.yaml"
# group, acceptable versions, and the parts that use them
_USED_APIS = (
    ("apps", ("v1",), (TAINTER,)),
    ("batch", ("v1",), (TAINTER,)),
    ("coordination.k8s.io", ("v1",), (TAINTER, OPERATOR)),
    ("discovery.k8s.io", ("v1", "v1beta1"), (AGENT,)),
    ("policy", ("v1", "v1beta1"), (TAINTER,)),
    ("authentication.k8s.io", ("v1",), (AGENT, TAINTER, OPERATOR)),
    ("authorization.k8s.io", ("v1",), (AGENT, TAINTER, OPERATOR)),
    ("rbac.authorization.k8s.io", ("v1",), (OPERATOR,)),
    ("admissionregistration.k8s.io", ("v1",), (OPERATOR,)),
    ("apiextensions.k8s.io", ("v1",), (TAINTER, OPERATOR)),
    ("muster.dev", ("v1alpha1",), (AGENT, TAINTER)),
    ("graphcore.ai", ("v1alpha1",), (OPERATOR,)),
)


def judge_policy(namespace: str, policy: DataMap | ReadFailure | None) -> list[DoctorFinding]:
    if isinstance(policy, ReadFailure):
        return read_failures(POLICY, policy)
    if policy is None or KEY not in policy.data:
        return [
            DoctorFinding(
                POLICY,
                Verdict.PASS,
                f"no ConfigMap {namespace}/{MAP}: the tainter uses its own file or the built-in policy",
            )
        ]
    try:
        parsed = parse_policy(policy.data[KEY], f"ConfigMap {namespace}/{MAP}: {KEY}")
    except PolicyError as error:
        first, *rest = str(error).splitlines()
        more = f" (and {len(rest)} more)" if rest else ""
        what = f"{shorten(first, 400)}{more}: the tainter keeps the last valid policy, and cannot start with this one"
        show = f"kubectl -n {namespace} get configmap {MAP} -o jsonpath='{{.data.policy\\.yaml}}' > p.yaml"
        return [
            DoctorFinding(
                POLICY,
                Verdict.FAIL,
                what,
                f"{show}; muster policy check p.yaml; then correct tainter.policy and run helm upgrade",
            )
        ]
    return [DoctorFinding(POLICY, Verdict.PASS, f"{namespace}/{MAP}: {plural(len(parsed.rules), 'rule')}")]


def list_needed_rights(policy: DataMap | ReadFailure | None, repair_namespace: str) -> list[NeededRight]:
    """What the active policy needs; nothing if it cannot be read, which :func:`judge_policy` reports."""
    if not isinstance(policy, DataMap) or KEY not in policy.data:
        return []
    try:
        return list(needed_rights(parse_policy(policy.data[KEY], MAP), repair_namespace))
    except PolicyError:
        return []


def find_device_mode(policy: DataMap | ReadFailure | None) -> str:
    """``devices.quarantine`` of the active policy; off if it cannot be read, which :func:`judge_policy` reports."""
    if not isinstance(policy, DataMap) or KEY not in policy.data:
        return "off"
    try:
        return parse_policy(policy.data[KEY], MAP).devices.quarantine
    except PolicyError:
        return "off"


def judge_apis(parts: Sequence[InstalledPart], groups: ApiGroups | ReadFailure) -> list[DoctorFinding]:
    if isinstance(groups, ReadFailure):
        return read_failures(APIS, groups)
    kinds = {part.kind for part in parts}
    served = {each.group_version for group in groups.groups for each in group.versions}
    found = []
    for group, versions, speakers in _USED_APIS:
        of_it = kinds.intersection(speakers)
        if of_it and not any(f"{group}/{version}" in served for version in versions):
            users = ", ".join(sorted(of_it))
            what = f"the cluster does not serve {group}/{' or '.join(versions)}, which is needed by: {users}"
            found.append(
                DoctorFinding(
                    APIS,
                    Verdict.FAIL,
                    what,
                    "Muster needs Kubernetes 1.20 or later; for muster.dev and graphcore.ai see the area crds",
                )
            )
    return found or [DoctorFinding(APIS, Verdict.PASS, "all API versions that the parts use are served")]
