"""The launcher's rights: list and watch pods, and exec into this job's workers, nothing else (behaviour 19)."""

from muster_operator.job import names
from muster_operator.job.types import IPUJob
from muster_operator.resources.config import worker_names
from muster_operator.resources.ownership import Body, build_owned

_RBAC = "rbac.authorization.k8s.io"


def service_account(job: IPUJob) -> Body:
    return build_owned(job, "v1", "ServiceAccount", names.launcher_account(job.metadata.name), {})


def role(job: IPUJob) -> Body:
    rules: list[Body] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    allowed = worker_names(job)
    # an empty list of names would mean every pod
    if allowed:
        rules.append({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"], "resourceNames": allowed})
    return build_owned(job, f"{_RBAC}/v1", "Role", names.launcher_account(job.metadata.name), {"rules": rules})


def role_binding(job: IPUJob) -> Body:
    name = names.launcher_account(job.metadata.name)
    content = {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.metadata.namespace}],
    }
    return build_owned(job, f"{_RBAC}/v1", "RoleBinding", name, content)
