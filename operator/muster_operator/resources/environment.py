"""Environment variables: how Poplar finds its IPUs, and how Open MPI finds the workers (behaviour 24).

Muster's variables come first, so that the user's variables may refer to them as ``$(NAME)``. The names and the timeout
are those observed in a worker of the original (EPCC EIDF).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UnsetType

from muster_operator.job import names
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob, instances, ipus_per_instance, workers_per_instance
from muster_operator.resources.config import HOSTFILE, KUBEEXEC, MOUNTED_AT
from muster_operator.resources.template import main_container

Env = list[dict[str, Any]]

VIPU_PORT = "8090"  # V-IPU's default
VIPU_TIMEOUT_S = "120"
BTL_INCLUDE = "OMPI_MCA_btl_tcp_if_include"
BTL_EXCLUDE = "OMPI_MCA_btl_tcp_if_exclude"
POD_ADDRESS = "MUSTER_POD_ADDRESS"
# users may override every variable except those that select the partition
PARTITION_VARIABLES = frozenset(
    {"IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT", "IPUOF_VIPU_API_PARTITION_ID", "IPUOF_VIPU_API_GCD_ID"}
)


def merge_environment(ours: Env, users: Iterable[Mapping[str, Any]], fixed: frozenset[str] = frozenset()) -> Env:
    """No duplicate names: the user's value wins except for ``fixed``; of two values of the user the later one, as in
    the API server."""
    theirs = {each["name"]: dict(each) for each in users if each.get("name") not in fixed}
    return [each for each in ours if each["name"] not in theirs] + list(theirs.values())


def worker_environment(job: IPUJob, instance: int, worker: int, entry: PartitionEntry, setup: JobSetup) -> Env:
    """worker: its number within the instance, which is also its GCD."""
    host, port = host_and_port(entry.controller)
    ours = {
        "IPUOF_VIPU_API_HOST": host,
        "IPUOF_VIPU_API_PORT": port,
        "IPUOF_VIPU_API_PARTITION_ID": names.partition(job.metadata.namespace, job.metadata.name, instance),
        "IPUOF_VIPU_API_TIMEOUT": VIPU_TIMEOUT_S,
        "IPUOF_VIPU_API_GCD_ID": str(worker),
        **_popdist(job, worker),
    }
    env: Env = [{"name": name, "value": value} for name, value in ours.items()]
    if not setup.btl_tcp_if_include and _needs_interface(job):
        # each node has its own address, but the launcher's environment is passed to all nodes. Open MPI 4.1 matches
        # every interface, even loopback, with ADDRESS/32; /31 is the narrowest mask that works
        env += [
            {"name": POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": BTL_INCLUDE, "value": f"$({POD_ADDRESS})/31"},
        ]
    return env


def launcher_environment(job: IPUJob, setup: JobSetup) -> Env:
    ours = {
        # mpirun passes this to its daemons in the workers. They start no processes, but in Open MPI 4.1 they fail if
        # the agent does not exist: the first existing one is used
        "OMPI_MCA_plm_rsh_agent": f"{MOUNTED_AT}/{KUBEEXEC} : /bin/true",
        # workers have no kubectl, so they must not start the daemons of others
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_default_hostfile": f"{MOUNTED_AT}/{HOSTFILE}",
    }
    if setup.btl_tcp_if_include and _needs_interface(job):
        ours[BTL_INCLUDE] = setup.btl_tcp_if_include
    return [{"name": name, "value": value} for name, value in ours.items()]


def users_launcher_environment(job: IPUJob) -> Env:
    """The workers' variables (mpirun -x passes on its own environment), overridden by the launcher's own."""
    own = () if isinstance(job.spec.launcher, UnsetType) else job.spec.launcher.env
    return merge_environment(list(main_container(job).get("env") or ()), own)


def _popdist(job: IPUJob, worker: int) -> dict[str, str]:
    """POPDIST variables: every worker is one Poplar instance of its job instance. Computed from modelReplicasPerWorker,
    or from the older modelReplicas (of all workers). Empty if neither is set or the numbers do not divide."""
    workers = workers_per_instance(job.spec)
    local, total = _number(job.spec.model_replicas_per_worker), _number(job.spec.model_replicas)
    if local:
        total = local * workers
    elif total and total % workers == 0:
        local = total // workers
    else:
        return {}
    ipus, rest = divmod(ipus_per_instance(job.spec), total)
    if rest:
        return {}
    return {
        "POPDIST_NUM_TOTAL_REPLICAS": str(total),
        "POPDIST_NUM_IPUS_PER_REPLICA": str(ipus),
        "POPDIST_NUM_LOCAL_REPLICAS": str(local),
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": str(local),
        "POPDIST_REPLICA_INDEX_OFFSET": str(local * worker),
        "POPDIST_LOCAL_INSTANCE_INDEX": "0",
    }


def _number(text: str | UnsetType) -> int:
    """0 if it is absent or not a number."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else 0


def _needs_interface(job: IPUJob) -> bool:
    """Whether several workers communicate and the user has not selected an interface. (Open MPI refuses to start if
    interfaces are both included and excluded.)"""
    if isinstance(job.spec.launcher, UnsetType) and isinstance(job.spec.interactive, UnsetType):
        return False
    if instances(job.spec) * workers_per_instance(job.spec) < 2:
        return False
    words = () if isinstance(job.spec.launcher, UnsetType) else job.spec.launcher.command
    if any("btl_tcp_if_include" in word or "btl_tcp_if_exclude" in word for word in words):
        return False
    return not any(each.get("name") in (BTL_INCLUDE, BTL_EXCLUDE) for each in users_launcher_environment(job))


def host_and_port(controller: str) -> tuple[str, str]:
    """Splits ``host:port``; an IPv6 address is in brackets."""
    host, colon, port = controller.rpartition(":")
    return (host.strip("[]"), port) if colon and port.isdecimal() else (controller.strip("[]"), VIPU_PORT)
