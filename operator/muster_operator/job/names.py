"""What things of a job are called, and how they are told from others'."""

import hashlib
import re

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "muster-operator"
# the originals' labels on pods are not public: these are ours
JOB = "muster.dev/ipujob"
JOB_UID = "muster.dev/ipujob-uid"
ROLE = "muster.dev/role"  # launcher or worker
INSTANCE = "muster.dev/instance"
ATTEMPT = "muster.dev/attempt"
TEMPLATE = "muster.dev/template"  # digest of the template that a pod was made from
SURGE = "muster.dev/surge"  # of an instance that stands in while others are replaced
LAUNCHER = "launcher"
WORKER = "worker"
OWNED_SELECTOR = f"{MANAGED_BY}={MANAGER}"
CHECKED = "muster.dev/ipujob-checks"  # label of a NodeHealth while a job asks for checks of it
CHECKER = "muster-operator-checks"  # field manager of those requests
TRACKER = "ipu-partitions-tracker"
QUARANTINE = "muster-ipu-quarantine"
PARKED_PREFIX = "p-muster-parked-"
REQUEST = "ipujob-"
ASKED_BY = "IPUJob "
_PARKED = re.compile(rf"{PARKED_PREFIX}[0-9a-f]{{8}}")  # no job's: those end in an instance, of 4 digits at most
_PARTITION_LIMIT = 200  # characters; ConfigMap keys end at 253


def launcher_pod(job: str) -> str:
    return f"{job}-launcher"


def worker_pod(job: str, index: int) -> str:
    """index: instance x workers of an instance + worker."""
    return f"{job}-worker-{index}"


def config_map(job: str) -> str:
    return f"{job}-config"


def launcher_account(job: str) -> str:
    """Of the ServiceAccount, the Role and the RoleBinding."""
    return f"{job}-launcher"


def partition(namespace: str, job: str, instance: int) -> str:
    """``p-<job>-<namespace>-<instance>``, as seen at a user's site.

    ``a-b`` in ``c`` and ``a`` in ``b-c`` would share one: where a hyphen makes it ambiguous a digest of both follows
    the prefix, so that no two jobs ever do. It has a capital letter, as no namespace has.
    """
    plain = f"p-{job}-{namespace}-{instance}"
    if "-" not in namespace and len(plain) <= _PARTITION_LIMIT:
        return plain
    digest = hashlib.blake2b(f"{namespace}/{job}".encode(), digest_size=4).hexdigest()
    return f"p-{job[:80]}-{namespace[:80]}-X{digest}-{instance}"


def request_prefix(job_uid: str) -> str:
    """Of the ids of its requests in NodeHealths."""
    return f"{REQUEST}{job_uid}-"


def asked_by(namespace: str, job: str) -> str:
    return f"{ASKED_BY}{namespace}/{job}"


def is_parked(partition_name: str) -> bool:
    """One that keeps quarantined IPUs out of the way."""
    return _PARKED.fullmatch(partition_name) is not None
