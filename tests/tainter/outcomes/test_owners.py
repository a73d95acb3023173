"""Whose attempt a pod is."""

from tests.tainter.outcomes.pod_objects import outcome

JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "big", "jobset.sigs.k8s.io/replicatedjob-name": "workers"}


def test_pods_of_one_controller_have_one_owner() -> None:
    assert outcome("train-0").owner == outcome("train-1", node="n2").owner
    assert outcome("train-0").owner != outcome("train-0", owner=("Job", "other")).owner


def test_roles_of_a_job_are_different_owners() -> None:
    role = "training.kubeflow.org/replica-type"
    master = outcome(owner=("PyTorchJob", "t"), labels={role: "master"}).owner
    assert master != outcome(owner=("PyTorchJob", "t"), labels={role: "worker"}).owner


def test_the_jobs_of_a_replicated_job_are_one_owner() -> None:
    first = outcome(owner=("Job", "big-workers-0"), labels=JOB_SET).owner
    assert first == outcome(owner=("Job", "big-workers-1"), labels=JOB_SET).owner
    driver = {**JOB_SET, "jobset.sigs.k8s.io/replicatedjob-name": "driver"}
    assert first != outcome(owner=("Job", "big-driver-0"), labels=driver).owner


def test_pods_without_a_controller_are_owners_themselves() -> None:
    assert outcome("a", owner=None).owner != outcome("b", owner=None).owner


def test_a_namespace_is_not_what_a_label_says() -> None:
    assert outcome(namespace="ml", labels=JOB_SET | {"namespace": "other"}).namespace == "ml"
