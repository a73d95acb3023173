"""Names and labels of a job's objects."""

import hashlib
import re

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "muster-operator"
# the original's pod labels are not public, so these are Muster's own
JOB = "muster.dev/ipujob"
JOB_UID = "muster.dev/ipujob-uid"
ROLE = "muster.dev/role"  # launcher or worker
INSTANCE = "muster.dev/instance"
INDEX = "muster.dev/index"  # of a worker: the number in its name
NUMBER = "muster.dev/worker"  # of a worker within its instance, from 0
ATTEMPT = "muster.dev/attempt"
ON_STRAGGLER = "muster.dev/on-straggler"  # annotation that the tainter reads
TEMPLATE = "muster.dev/template"  # digest of the template that the pod was created from
SURGE = "muster.dev/surge"  # marks an instance that replaces others during a rolling update
LAUNCHER = "launcher"
WORKER = "worker"
OWNED_SELECTOR = f"{MANAGED_BY}={MANAGER}"
CHECKED = "muster.dev/ipujob-checks"  # label of a NodeHealth with check requests of jobs
CHECKER = "muster-operator-checks"  # field manager of these requests
TRACKER = "ipu-partitions-tracker"
QUARANTINE = "muster-ipu-quarantine"
PARKED_PREFIX = "p-muster-parked-"
REQUEST = "ipujob-"
REQUESTER_PREFIX = "IPUJob "
# never a job's name: those end in an instance number of at most 4 digits
_PARKED = re.compile(rf"{PARKED_PREFIX}[0-9a-f]{{8}}")
# stands where a job's name does, for a pod that has IPUs by its annotation: no name of an IPUJob has a slash
POD_PREFIX = "pod/"
IPUS = "muster.dev/ipus"  # label of such a pod, with its number of IPUs, and the name of its scheduling gate
WORKER_IPUS = "muster.dev/worker-ipus"  # annotation of a worker: its share of its instance's IPUs
PARTITION = "muster.dev/partition"  # annotation of such a pod
_PARTITION_LIMIT = 200  # characters; ConfigMap keys are limited to 253


def launcher_pod(job: str) -> str:
    return f"{job}-launcher"


def worker_pod(job: str, index: int) -> str:
    """index: instance x workers per instance + worker."""
    return f"{job}-worker-{index}"


def config_map(job: str) -> str:
    return f"{job}-config"


def launcher_account(job: str) -> str:
    """The name of the ServiceAccount, the Role and the RoleBinding."""
    return f"{job}-launcher"


def partition(namespace: str, job: str, instance: int) -> str:
    """``p-<job>-<namespace>-<instance>``, as observed at a user's site.

    Job ``a-b`` in namespace ``c`` and job ``a`` in ``b-c`` would get the same name. If a hyphen makes the name
    ambiguous, it contains a digest of both, so names are unique. The digest begins with a capital letter, which no
    namespace contains. The partition of a pod (``job``: ``pod/NAME``) always contains one, which begins with P.
    """
    if is_pod(job):
        digest = hashlib.blake2b(f"{namespace}/{job}".encode(), digest_size=8).hexdigest()
        return f"p-{job.removeprefix(POD_PREFIX)[:80]}-{namespace[:80]}-P{digest}-{instance}"
    plain = f"p-{job}-{namespace}-{instance}"
    if "-" not in namespace and len(plain) <= _PARTITION_LIMIT:
        return plain
    digest = hashlib.blake2b(f"{namespace}/{job}".encode(), digest_size=4).hexdigest()
    return f"p-{job[:80]}-{namespace[:80]}-X{digest}-{instance}"


def is_pod(job: str) -> bool:
    """Whether the name is that of a pod with IPUs, ``pod/NAME``, and not of an IPUJob."""
    return job.startswith(POD_PREFIX)


def request_prefix(job_uid: str) -> str:
    """Prefix of the ids of the job's requests in NodeHealths."""
    return f"{REQUEST}{job_uid}-"


def requester(namespace: str, job: str) -> str:
    return f"{REQUESTER_PREFIX}{namespace}/{job}"


def is_parked(partition_name: str) -> bool:
    """Whether the partition only keeps quarantined IPUs out of use."""
    return _PARKED.fullmatch(partition_name) is not None
