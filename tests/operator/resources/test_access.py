"""What the launcher may do (behaviour 19)."""

from tests.operator.plan.job_factory import make_job

from muster_operator.resources.access import role, role_binding, service_account


def test_19_sees_and_execs_into_its_own_workers_only() -> None:
    workers = ["train-worker-0", "train-worker-1", "train-worker-2", "train-worker-3"]
    assert role(make_job(instances=2, workers=2))["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"], "resourceNames": workers},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"], "resourceNames": workers},
    ]


def test_19_a_job_without_workers_may_see_and_exec_into_nothing_rather_than_everything() -> None:
    assert role(make_job(instances=0))["rules"] == []


def test_19_the_role_is_bound_to_the_launchers_account_in_its_namespace() -> None:
    job = make_job(name="a", namespace="b")
    bound = role_binding(job)
    assert bound["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a-launcher"}
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "a-launcher", "namespace": "b"}]
    assert service_account(job)["metadata"]["name"] == role(job)["metadata"]["name"] == "a-launcher"


def test_19_a_scaled_job_has_another_role() -> None:
    assert role(make_job())["metadata"]["annotations"] != role(make_job(instances=2))["metadata"]["annotations"]
