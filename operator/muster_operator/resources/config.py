"""The ConfigMap for MPI: ``kubeexec``, its remote shell, and ``hostfile`` (behaviours 17, 18)."""

import shlex

from muster_operator.job import names
from muster_operator.job.types import IPUJob, instances, workers_per_instance
from muster_operator.resources.ownership import Body, build_owned
from muster_operator.resources.template import main_container

KUBEEXEC = "kubeexec"
HOSTFILE = "hostfile"
MOUNTED_AT = "/etc/mpi"  # the path in kubeflow's mpi-operator 0.3, the model of the original
KUBECTL_AT = "/opt/kube"  # likewise

# A remote shell receives one line for the remote shell's parser, as with ssh. Open MPI quotes accordingly, so the
# arguments are joined by blanks and not quoted again.
_SCRIPT = """\
#!/bin/sh
# kubeexec POD COMMAND...: runs COMMAND in a shell in POD
PATH="{kubectl}:$PATH"
if [ "$#" -lt 2 ]; then
  echo "usage: kubeexec POD COMMAND..." >&2
  exit 64
fi
pod=$1
shift
exec kubectl exec "$pod" -c {container} -- /bin/sh -c "$*"
"""


def worker_names(job: IPUJob) -> list[str]:
    """All workers of the job, in the order of their indices."""
    return [
        names.worker_pod(job.metadata.name, index)
        for index in range(instances(job.spec) * workers_per_instance(job.spec))
    ]


def config_map(job: IPUJob) -> Body:
    """Each worker is one Poplar instance, so it has one slot."""
    data = {
        KUBEEXEC: _SCRIPT.format(kubectl=KUBECTL_AT, container=shlex.quote(main_container(job)["name"])),
        HOSTFILE: "".join(f"{worker} slots=1\n" for worker in worker_names(job)),
    }
    return build_owned(job, "v1", "ConfigMap", names.config_map(job.metadata.name), {"data": data})
