"""The bodies of workers and launcher (behaviours 20 to 23), from templates of every kind."""

import copy
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import yaml
from tests.operator.plan.job_factory import MPIRUN, make_entry, make_job, template

from muster_operator.admission.defaults import apply_defaults
from muster_operator.job import names
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob, instances, workers_per_instance
from muster_operator.resources import pods
from muster_tainter.step_times.owner_policy import ANNOTATION, OnStraggler, owner_policy

SAMPLES = sorted((Path(__file__).parents[1] / "samples").glob("ipujob_*.yaml"))


def worker(job: IPUJob, setup: JobSetup | None = None, index: int = 0) -> dict[str, Any]:
    return pods.build_worker(job, index, make_entry(job), 0, setup or JobSetup())


def launcher(job: IPUJob, setup: JobSetup | None = None) -> dict[str, Any]:
    return pods.build_launcher(job, [make_entry(job)], 0, setup or JobSetup())


def both(job: IPUJob, setup: JobSetup | None = None) -> list[dict[str, Any]]:
    return [worker(job, setup), launcher(job, setup)]


def main(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["containers"][0]
    return found


def test_null_fields_of_the_template_are_filled_in() -> None:
    """`restartPolicy: null` means Always to the API server: a worker that ends would be run again for ever."""
    job = make_job(launcher=False, pods=template(restartPolicy=None, hostNetwork=None, dnsPolicy=None))
    spec = worker(job)["spec"]
    assert (spec["restartPolicy"], spec["hostNetwork"]) == ("Never", True)
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"


class TestCommands:
    """Behaviour 20."""

    def test_20_a_worker_under_a_launcher_sleeps(self) -> None:
        assert "sleep 365d" in main(worker(make_job()))["command"][-1]

    def test_20_a_worker_of_an_interactive_job_and_its_launcher_sleep(self) -> None:
        job = make_job(launcher=False, interactive={"ttl": 60})
        assert main(worker(job))["command"] == main(launcher(job))["command"] == pods.SLEEP

    @pytest.mark.parametrize("own", [{"command": ["/serve"]}, {"args": ["--port", "1"]}])
    def test_20_a_worker_with_words_of_its_own_runs_them(self, own: dict[str, Any]) -> None:
        job = make_job(pods=template(containers=[{"name": "main", "image": "i", **own}]))
        found = main(worker(job))
        assert {key: found[key] for key in ("command", "args") if key in found} == own

    def test_20_without_a_launcher_the_image_keeps_its_command(self) -> None:
        assert "command" not in main(worker(make_job(launcher=False)))

    def test_20_only_the_main_container_sleeps(self) -> None:
        containers = [{"name": "main", "image": "i"}, {"name": "logs", "image": "l"}]
        made = worker(make_job(pods=template(containers=containers)))["spec"]["containers"]
        assert ["command" in each for each in made] == [True, False]

    def test_20_a_sleeping_worker_ends_at_once_on_sigterm(self) -> None:
        """As the first process of a container, a bare sleep would not: signals without a handler do not reach it."""
        assert "trap " in pods.SLEEP[-1]
        with subprocess.Popen(pods.SLEEP, start_new_session=True) as sleeper:
            _wait_for_child(sleeper.pid)
            sleeper.send_signal(signal.SIGTERM)
            assert sleeper.wait(60) == 143
            os.killpg(sleeper.pid, signal.SIGKILL)

    def test_21_the_launcher_runs_the_users_command_in_the_workers_image(self) -> None:
        found = main(launcher(make_job(pods=template(containers=[{"name": "r", "image": "resnet:1", "args": ["x"]}]))))
        assert (found["image"], found["command"]) == ("resnet:1", MPIRUN["command"])
        assert "args" not in found


def _wait_for_child(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if psutil.Process(pid).children():
            return
        time.sleep(0.01)
    raise AssertionError("the sleeper does not sleep")


class TestInitContainer:
    """Behaviour 21."""

    def test_21_waits_for_the_workers_and_brings_kubectl(self) -> None:
        job = make_job(instances=2, workers=2)
        spec = launcher(job, JobSetup(launcher_image="muster:9", launcher_image_pull_policy="IfNotPresent"))["spec"]
        (found,) = spec["initContainers"]
        words = [*found["command"], *found["args"]]
        assert " ".join(words) == (
            "muster wait-workers --namespace default --job train --uid uid-default-train --workers 4 "
            "--kubectl-to /opt/kube"
        )
        assert (found["image"], found["imagePullPolicy"]) == ("muster:9", "IfNotPresent")

    def test_21_kubectl_reaches_the_main_container(self) -> None:
        spec = launcher(make_job())["spec"]
        (brought,) = spec["initContainers"][0]["volumeMounts"]
        assert brought["mountPath"] == "/opt/kube"
        assert {**brought, "readOnly": True} in spec["containers"][0]["volumeMounts"]
        assert {"name": brought["name"], "emptyDir": {}} in spec["volumes"]

    def test_21_asks_the_api_with_the_launchers_account(self) -> None:
        job = make_job(pods=template(serviceAccountName="users", automountServiceAccountToken=False))
        spec = launcher(job)["spec"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("train-launcher", True)
        assert worker(job)["spec"]["serviceAccountName"] == "users"

    def test_names_do_not_meet_the_users(self) -> None:
        users = [{"name": "muster-mpi", "emptyDir": {}}, {"name": "muster-kubectl", "emptyDir": {}}]
        job = make_job(
            pods=template(
                containers=[
                    {
                        "name": "wait-workers",
                        "image": "i",
                        "volumeMounts": [{"name": "muster-mpi", "mountPath": "/data"}],
                    }
                ],
                volumes=users,
            )
        )
        spec = launcher(job)["spec"]
        containers = [each["name"] for each in (*spec["containers"], *spec["initContainers"])]
        assert containers == ["wait-workers", "wait-workers-1"]
        volumes = [each["name"] for each in spec["volumes"]]
        assert volumes == ["muster-mpi", "muster-kubectl", "muster-mpi-1", "muster-kubectl-1"]
        mounts = {each["mountPath"]: each["name"] for each in spec["containers"][0]["volumeMounts"]}
        assert mounts == {"/data": "muster-mpi", "/etc/mpi": "muster-mpi-1", "/opt/kube": "muster-kubectl-1"}

    def test_the_workers_own_init_containers_are_not_the_launchers(self) -> None:
        job = make_job(pods=template(initContainers=[{"name": "load", "image": "l"}]))
        assert [each["name"] for each in launcher(job)["spec"]["initContainers"]] == ["wait-workers"]
        assert [each["name"] for each in worker(job)["spec"]["initContainers"]] == ["load"]


class TestVolumes:
    """Behaviour 22."""

    def test_22_the_launcher_has_the_workers_volumes_at_the_same_path(self) -> None:
        claim = {"name": "mypvc", "persistentVolumeClaim": {"claimName": "nfs-pvc"}}
        mount = {"name": "mypvc", "mountPath": "/mnt/sample"}
        containers = [{"name": "main", "image": "i", "volumeMounts": [mount]}]
        for body in both(make_job(pods=template(containers=containers, volumes=[claim]))):
            assert claim in body["spec"]["volumes"]
            assert mount in main(body)["volumeMounts"]

    def test_22_a_worker_gets_no_volume_of_ours(self) -> None:
        spec = worker(make_job())["spec"]
        assert "volumes" not in spec
        assert "volumeMounts" not in main({"spec": spec})


class TestSwitches:
    """Behaviour 23."""

    def test_23_by_default_on_the_hosts_network_and_privileged(self) -> None:
        for body in both(make_job()):
            assert body["spec"]["hostNetwork"] is True
            assert body["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
            assert main(body)["securityContext"] == {"privileged": True}

    def test_23_without_host_network_there_is_no_resolver_for_it(self) -> None:
        for body in both(make_job(), JobSetup(host_network=False)):
            assert "hostNetwork" not in body["spec"]
            assert "dnsPolicy" not in body["spec"]
            assert main(body)["securityContext"] == {"privileged": True}

    def test_23_each_is_switched_by_itself(self) -> None:
        for body in both(make_job(), JobSetup(privileged=False, dns_policy="Default")):
            assert body["spec"]["hostNetwork"] is True
            assert body["spec"]["dnsPolicy"] == "Default"
            assert "securityContext" not in main(body)

    def test_23_the_templates_own_values_stand(self) -> None:
        containers = [{"name": "main", "image": "i", "securityContext": {"privileged": False, "runAsUser": 5}}]
        job = make_job(pods=template(containers=containers, hostNetwork=False, dnsPolicy="Default"))
        for body in both(job):
            assert (body["spec"]["hostNetwork"], body["spec"]["dnsPolicy"]) == (False, "Default")
            assert main(body)["securityContext"] == {"privileged": False, "runAsUser": 5}

    def test_23_a_template_off_the_hosts_network_resolves_as_others_do(self) -> None:
        for body in both(make_job(pods=template(hostNetwork=False))):
            assert "dnsPolicy" not in body["spec"]

    def test_23_a_container_without_privilege_escalation_is_not_privileged(self) -> None:
        """The API server takes no pod that says both."""
        containers = [{"name": "main", "image": "i", "securityContext": {"allowPrivilegeEscalation": False}}]
        for body in both(make_job(pods=template(containers=containers))):
            assert main(body)["securityContext"] == {"allowPrivilegeEscalation": False}

    def test_23_the_init_container_needs_no_privileges(self) -> None:
        context = launcher(make_job())["spec"]["initContainers"][0]["securityContext"]
        assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class TestTemplates:
    def test_is_kept_as_it_is(self) -> None:
        spec = {
            "priorityClassName": "high",
            "hostIPC": True,
            "terminationGracePeriodSeconds": 5,
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "resources": {"limits": {"cpu": "4"}},
                    "livenessProbe": {"exec": {"command": ["true"]}},
                    "ports": [{"containerPort": 80}],
                }
            ],
        }
        made = worker(make_job(pods={"spec": copy.deepcopy(spec)}))["spec"]
        assert {key: made[key] for key in spec if key != "containers"} == {
            key: value for key, value in spec.items() if key != "containers"
        }
        container = main({"spec": made})
        assert {key: container[key] for key in ("resources", "livenessProbe", "ports")} == {
            "resources": {"limits": {"cpu": "4"}},
            "livenessProbe": {"exec": {"command": ["true"]}},
            "ports": [{"containerPort": 80}],
        }

    def test_is_not_changed_in_place(self) -> None:
        job = make_job(pods=template(tolerations=[{"key": "muster.dev/faulty"}], affinity={"podAffinity": {}}))
        before = copy.deepcopy(job.spec.workers.template)
        both(job)
        assert job.spec.workers.template == before

    def test_settings_of_the_workers_alone_do_not_reach_the_launcher(self) -> None:
        spec = {
            "hostname": "w",
            "nodeName": "n",
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
            "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "resources": {"limits": {"vendor.example/ipu": 1}},
                    "readinessProbe": {"exec": {"command": ["true"]}},
                    "ports": [{"containerPort": 80}],
                }
            ],
        }
        made = launcher(make_job(pods={"spec": spec}))["spec"]
        assert not {"hostname", "nodeName", "topologySpreadConstraints"} & made.keys()
        assert set(made["affinity"]) == {"nodeAffinity"}
        assert not {"readinessProbe", "ports"} & main({"spec": made}).keys()
        assert main({"spec": made})["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}

    @pytest.mark.parametrize("policy", ["continue", "notify", "checkpoint-and-move", "stop"])
    def test_what_to_do_about_a_slow_rank_is_an_annotation_that_the_tainter_reads(self, policy: str) -> None:
        job = make_job(healthPolicy={"onStraggler": policy})
        for found in both(job):
            assert owner_policy(found["metadata"]["annotations"]) == (OnStraggler(policy), "")
        own = make_job(
            pods=template() | {"metadata": {"annotations": {ANNOTATION: "continue"}}},
            healthPolicy={"onStraggler": policy},
        )
        assert {found["metadata"]["annotations"][ANNOTATION] for found in both(own)} == {"continue"}

    def test_labels_and_annotations_reach_both_and_ours_win(self) -> None:
        metadata = {
            "labels": {"app": "resnet-launcher", names.MANAGED_BY: "Helm", names.ROLE: "launcher"},
            "annotations": {"sidecar.istio.io/inject": "false"},
            "name": "not-this",
            "namespace": "nor-this",
        }
        job = make_job(pods={**template(), "metadata": metadata})
        made = {body["metadata"]["name"]: body["metadata"] for body in both(job)}
        assert set(made) == {"train-worker-0", "train-launcher"}
        for name, found in made.items():
            assert found["namespace"] == "default"
            assert found["annotations"]["sidecar.istio.io/inject"] == "false"
            assert found["annotations"].get(names.WORKER_IPUS) == (None if name.endswith("launcher") else "4")
            labels = found["labels"]
            assert labels["app"] == "resnet-launcher"
            assert (labels[names.MANAGED_BY], labels[names.JOB]) == (names.MANAGER, "train")
            assert labels[names.ROLE] == ("worker" if name.endswith("worker-0") else "launcher")

    def test_a_worker_says_its_instance_and_attempt(self) -> None:
        job = make_job(instances=3, workers=2)
        labels = pods.build_worker(job, 5, make_entry(job, 2), 7, JobSetup())["metadata"]["labels"]
        assert (labels[names.INSTANCE], labels[names.INDEX], labels[names.ATTEMPT]) == ("2", "5", "7")

    def test_what_a_kueue_integration_writes_into_the_template_reaches_the_pods_and_the_launcher_has_its_own_set(
        self,
    ) -> None:
        annotations = {"kueue.x-k8s.io/podset-required-topology": "rack", "kueue.x-k8s.io/workload": "ipujob-train"}
        gates = [{"name": "kueue.x-k8s.io/topology"}]
        added = template()
        added["metadata"] = {"labels": {"kueue.x-k8s.io/podset": "workers"}, "annotations": annotations}
        added["spec"]["schedulingGates"] = gates
        for body in both(make_job(pods=added)):
            metadata = body["metadata"]
            pod_set = "workers" if metadata["labels"][names.ROLE] == names.WORKER else "launcher"
            assert metadata["labels"]["kueue.x-k8s.io/podset"] == pod_set
            assert metadata["annotations"].items() >= annotations.items()
            assert body["spec"]["schedulingGates"] == gates

    def test_without_kueue_no_pod_is_of_a_set(self) -> None:
        for body in both(make_job()):
            assert not any(key.startswith("kueue") for key in body["metadata"]["labels"])

    def test_starting_again_is_the_jobs_business_unless_the_template_says_otherwise(self) -> None:
        assert [body["spec"]["restartPolicy"] for body in both(make_job())] == ["Never", "Never"]
        own = make_job(pods=template(restartPolicy="Always"))
        assert [body["spec"]["restartPolicy"] for body in both(own)] == ["Always", "Never"]

    def test_long_names_stay_within_the_limits_of_labels_and_pods(self) -> None:
        job = make_job(name="j" * 54, namespace="n" * 63)
        metadata = msgspec.structs.replace(job.metadata, uid="b" * 36)
        job = msgspec.structs.replace(job, metadata=metadata)
        for body in both(job):
            assert len(body["metadata"]["name"]) <= 63
            assert all(len(value) <= 63 for value in body["metadata"]["labels"].values())
            spec = body["spec"]
            assert all(len(each["name"]) <= 63 for each in (*spec["containers"], *spec.get("volumes", ())))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_makes_pods(path: Path) -> None:
    found = next(each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "IPUJob")
    found["spec"] = apply_defaults(found["spec"]).spec
    found["metadata"] |= {"namespace": "default", "uid": "u"}
    job = msgspec.convert(found, IPUJob)
    for index in range(instances(job.spec) * workers_per_instance(job.spec)):
        container = main(worker(job, index=index))
        assert {"name": "IPUOF_VIPU_API_PARTITION_ID", "value": f"p-{job.metadata.name}-default-{index}"} in (
            container["env"]
        )
    if path.stem.endswith("nfs"):
        for body in both(job):
            assert {"name": "sets", "mountPath": "/sets"} in main(body)["volumeMounts"]
