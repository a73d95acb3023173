"""The launcher's rights: see this job's workers and exec into them, nothing else (behaviour 19).

RBAC knows no label selectors, so both rules name the workers. A list or watch is then allowed only with the field
selector ``metadata.name=WORKER``.
"""

from muster_operator.job import names
from muster_operator.job.types import IPUJob
from muster_operator.resources.config import worker_names
from muster_operator.resources.ownership import Body, build_owned

_RBAC = "rbac.authorization.k8s.io"


def service_account(job: IPUJob) -> Body:
    return build_owned(job, "v1", "ServiceAccount", names.launcher_account(job.metadata.name), {})


def role(job: IPUJob) -> Body:
    workers = worker_names(job)
    rules: list[Body] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"], "resourceNames": workers},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"], "resourceNames": workers},
    ]
    if not workers:
        rules = []  # an empty list of names would mean every pod
    return build_owned(job, f"{_RBAC}/v1", "Role", names.launcher_account(job.metadata.name), {"rules": rules})


def role_binding(job: IPUJob) -> Body:
    name = names.launcher_account(job.metadata.name)
    content = {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.metadata.namespace}],
    }
    return build_owned(job, f"{_RBAC}/v1", "RoleBinding", name, content)
