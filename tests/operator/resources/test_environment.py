"""Environment variables of workers and launcher (behaviour 24)."""

from typing import Any

import msgspec
import pytest
from tests.operator.plan.job_factory import make_entry, make_job, template

from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob, Launcher
from muster_operator.resources import pods

BTL = "OMPI_MCA_btl_tcp_if_include"


def env_of(body: dict[str, Any]) -> dict[str, Any]:
    listed = body["spec"]["containers"][0]["env"]
    found = {each["name"]: each.get("value", each.get("valueFrom")) for each in listed}
    assert len(found) == len(listed), f"a name twice: {listed}"
    return found


def worker_env(job: IPUJob, index: int = 0, setup: JobSetup | None = None, **entry: Any) -> dict[str, Any]:
    return env_of(pods.build_worker(job, index, make_entry(job, **entry), 0, setup or JobSetup()))


def launcher_env(job: IPUJob, setup: JobSetup | None = None) -> dict[str, Any]:
    return env_of(pods.build_launcher(job, [make_entry(job)], 0, setup or JobSetup()))


def with_env(*env: dict[str, Any]) -> dict[str, Any]:
    return template(containers=[{"name": "main", "image": "i", "env": list(env)}])


def test_24_a_worker_finds_its_partition() -> None:
    job = make_job(name="bert-poprun-64ipus", namespace="gc", instances=2, workers=2)
    found = worker_env(job, index=3)
    assert found == found | {
        "IPUOF_VIPU_API_HOST": "10.21.21.129",
        "IPUOF_VIPU_API_PORT": "8090",
        "IPUOF_VIPU_API_PARTITION_ID": "p-bert-poprun-64ipus-gc-1",
        "IPUOF_VIPU_API_TIMEOUT": "120",
        "IPUOF_VIPU_API_GCD_ID": "1",
    }


@pytest.mark.parametrize(
    ("controller", "host", "port"),
    [
        ("vipu.example:8091", "vipu.example", "8091"),
        ("[fd00::1]:8090", "fd00::1", "8090"),
        ("vipu.example", "vipu.example", "8090"),
    ],
)
def test_24_the_controllers_address_is_taken_apart(controller: str, host: str, port: str) -> None:
    found = worker_env(make_job(), controller=controller)
    assert (found["IPUOF_VIPU_API_HOST"], found["IPUOF_VIPU_API_PORT"]) == (host, port)


def test_24_the_templates_own_do_not_come_twice() -> None:
    job = make_job(
        pods=with_env(
            {"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "somebody-elses"},
            {"name": "IPUOF_VIPU_API_HOST", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "IPUOF_VIPU_API_TIMEOUT", "value": "900"},
            {"name": "IPUOF_LOG_LEVEL", "value": "WARN"},
            {"name": "IPUOF_LOG_LEVEL", "value": "INFO"},
        )
    )
    found = worker_env(job)
    # which partition it has is not the template's to say; how long to wait for it is
    assert found["IPUOF_VIPU_API_PARTITION_ID"] == "p-train-default-0"
    assert found["IPUOF_VIPU_API_HOST"] == "10.21.21.129"
    assert found["IPUOF_VIPU_API_TIMEOUT"] == "900"
    assert found["IPUOF_LOG_LEVEL"] == "INFO"


def test_24_the_templates_own_may_refer_to_ours() -> None:
    job = make_job(pods=with_env({"name": "WHERE", "value": "$(IPUOF_VIPU_API_PARTITION_ID)"}))
    listed = [
        each["name"]
        for each in pods.build_worker(job, 0, make_entry(job), 0, JobSetup())["spec"]["containers"][0]["env"]
    ]
    assert listed.index("IPUOF_VIPU_API_PARTITION_ID") < listed.index("WHERE")


def test_24_every_container_of_a_worker_has_them() -> None:
    job = make_job(pods=template(containers=[{"name": f"c{number}", "image": "i"} for number in range(40)]))
    made = pods.build_worker(job, 0, make_entry(job), 0, JobSetup())["spec"]["containers"]
    assert len(made) == 40
    assert all("IPUOF_VIPU_API_PARTITION_ID" in [each["name"] for each in one["env"]] for one in made)


class TestPopdist:
    def test_of_model_replicas_per_worker(self) -> None:
        """Numbers as in data/ipu/poprun_env_in_ipujob_worker.txt, over two workers."""
        found = worker_env(make_job(ipus=64, workers=2, modelReplicasPerWorker="8"), index=1)
        assert {name: value for name, value in found.items() if name.startswith("POPDIST")} == {
            "POPDIST_NUM_TOTAL_REPLICAS": "16",
            "POPDIST_NUM_IPUS_PER_REPLICA": "4",
            "POPDIST_NUM_LOCAL_REPLICAS": "8",
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "8",
            "POPDIST_REPLICA_INDEX_OFFSET": "8",
            "POPDIST_LOCAL_INSTANCE_INDEX": "0",
        }

    def test_of_the_older_form(self) -> None:
        found = worker_env(make_job(ipus=4, workers=2, modelReplicas="4", ipusPerModelReplica="1"))
        assert (found["POPDIST_NUM_TOTAL_REPLICAS"], found["POPDIST_NUM_IPUS_PER_REPLICA"]) == ("4", "1")
        assert found["POPDIST_NUM_LOCAL_REPLICAS"] == "2"

    @pytest.mark.parametrize("said", [{}, {"modelReplicasPerWorker": "3"}, {"modelReplicasPerWorker": "0"}])
    def test_is_left_out_where_nothing_gives_it(self, said: dict[str, Any]) -> None:
        assert not [name for name in worker_env(make_job(ipus=4, **said)) if name.startswith("POPDIST")]

    def test_the_templates_own_wins(self) -> None:
        own = with_env({"name": "POPDIST_NUM_TOTAL_REPLICAS", "value": "1"})
        found = worker_env(make_job(modelReplicasPerWorker="4", pods=own))
        assert found["POPDIST_NUM_TOTAL_REPLICAS"] == "1"


class TestLauncher:
    def test_17_finds_the_workers(self) -> None:
        found = launcher_env(make_job())
        assert found["OMPI_MCA_plm_rsh_agent"] == "/etc/mpi/kubeexec : /bin/true"
        assert found["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"

    def test_has_the_workers_variables_and_over_them_its_own(self) -> None:
        pods = with_env({"name": "A", "value": "1"}, {"name": "B", "value": "2"})
        launcher = {"command": ["mpirun"], "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}
        job = _with_launcher(make_job(pods=pods), launcher)
        found = launcher_env(job)
        assert (found["A"], found["B"], found["C"]) == ("1", "3", "4")

    def test_may_choose_another_hostfile(self) -> None:
        job = _with_launcher(
            make_job(), {"command": ["x"], "env": [{"name": "OMPI_MCA_orte_default_hostfile", "value": "/mine"}]}
        )
        assert launcher_env(job)["OMPI_MCA_orte_default_hostfile"] == "/mine"


class TestInterface:
    """For jobs of several workers; what the user says about it wins."""

    def test_a_single_worker_needs_none(self) -> None:
        assert BTL not in worker_env(make_job())
        assert BTL not in launcher_env(make_job(), JobSetup(btl_tcp_if_include="eth0"))

    def test_by_the_nodes_own_address(self) -> None:
        job = make_job(workers=2)
        found = worker_env(job)
        assert found["MUSTER_POD_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert found[BTL] == "$(MUSTER_POD_ADDRESS)/31"
        # mpirun hands its own environment to all nodes, and each has another address
        assert BTL not in launcher_env(job)

    def test_by_the_setting(self) -> None:
        job, setup = make_job(instances=2), JobSetup(btl_tcp_if_include="10.2.0.0/16")
        assert launcher_env(job, setup)[BTL] == "10.2.0.0/16"
        assert BTL not in worker_env(job, setup=setup)

    @pytest.mark.parametrize(
        "users",
        [
            {"launcher": {"command": ["mpirun", "--mca", "btl_tcp_if_include", "eth1"]}},
            {"launcher": {"command": ["sh", "-c", "mpirun --mca btl_tcp_if_exclude lo a"]}},
            {"launcher": {"command": ["mpirun"], "env": [{"name": BTL, "value": "eth1"}]}},
            {"launcher": {"command": ["x"], "env": [{"name": "OMPI_MCA_btl_tcp_if_exclude", "value": "lo"}]}},
        ],
    )
    @pytest.mark.parametrize("setting", ["", "eth9"])
    def test_the_users_choice_wins(self, users: dict[str, Any], setting: str) -> None:
        job, setup = _with_launcher(make_job(workers=2), users["launcher"]), JobSetup(btl_tcp_if_include=setting)
        assert BTL not in worker_env(job, setup=setup)
        assert launcher_env(job, setup).get(BTL) in (None, "eth1")

    def test_the_templates_choice_wins(self) -> None:
        job = make_job(workers=2, pods=with_env({"name": BTL, "value": "eth1"}))
        assert worker_env(job)[BTL] == launcher_env(job)[BTL] == "eth1"

    def test_a_job_without_launcher_is_left_alone(self) -> None:
        assert BTL not in worker_env(make_job(launcher=False, instances=2))


def _with_launcher(job: IPUJob, launcher: dict[str, Any]) -> IPUJob:
    spec = msgspec.structs.replace(job.spec, launcher=msgspec.convert(launcher, Launcher))
    return msgspec.structs.replace(job, spec=spec)
