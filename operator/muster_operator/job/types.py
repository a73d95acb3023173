"""IPUJob (``ipujobs.graphcore.ai``, v1alpha1) and its spec; its status is in status_types.py.

These types are the only source of the CRD: `make generate` writes it from the types, their bounds and their
descriptions. Fields are those of the published CRD 1.2.0 (graphcore/helm-charts, tag 1.2.0), the older spellings
(``workerPerJobInstance`` of 1.0.3; ``modelReplicas``, ``ipusPerModelReplica`` of 1.0.0-alpha-5), and Muster's own
fields, which are marked as such.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from muster_kube.api.objects import Api, Metadata
from muster_operator.job.status_types import IPUJobStatus

GROUP = "graphcore.ai"
VERSION = "v1alpha1"
KIND = "IPUJob"
PLURAL = "ipujobs"
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = "ipu.finalizers.graphcore.ai"

RestartType = Literal["Always", "OnFailure", "Never", "ExitCode"]
CleanPodPolicy = Literal["None", "All", "Workers"]
CheckpointSignal = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"]
INSTANCES_LIMIT = 4096  # of one job: bounds what a scale can ask for
EXIT_CODES = r"^([0-9]+(-[0-9]+)?)(,([0-9]+(-[0-9]+)?))*$"


class RestartPolicy(Api, frozen=True):
    """When a job runs again after it has ended."""

    type: Annotated[
        RestartType,
        Meta(description="Always, OnFailure, Never (the default without restartPolicy), or ExitCode: see exitCodes."),
    ] = "Never"
    back_off_limit: Annotated[
        int, Meta(ge=0, description="Maximum number of restarts, including those after a success; default 3.")
    ] = 3
    exit_codes: (
        Annotated[
            str,
            Meta(
                pattern=EXIT_CODES,
                description="With ExitCode: exit codes that restart the job, for example 1,3,128-255; default 128-255. "
                "The exit codes of the launcher's containers and init containers count, and those of failed workers.",
            ),
        ]
        | UnsetType
    ) = UNSET


class Launcher(Api, frozen=True):
    """Set it for a distributed job: the pod that starts the processes in the workers. It runs in the workers' image,
    with their volumes. In a job without launcher, the workers run their own command."""

    command: Annotated[tuple[str, ...], Meta(description="The command that starts the job, for example mpirun.")]
    env: Annotated[tuple[dict[str, Any], ...], Meta(description="Environment variables of the launcher (EnvVar).")] = ()


class Interactive(Api, frozen=True):
    """Set it instead of launcher for an interactive session, which starts no command. Users exec into its
    launcher pod."""

    ttl: Annotated[int, Meta(ge=1, description="Lifetime of the session in seconds, from when it first runs.")]


class RollingUpdate(Api, frozen=True):
    """Bounds of a RollingUpdate; default 25% each. Percentages are of jobInstances. If both come to 0, one instance may
    be missing."""

    max_surge: Annotated[
        int | str,
        Meta(description="Maximum number of instances above jobInstances: a number or a percentage, rounded up."),
    ] = "25%"
    max_unavailable: Annotated[
        int | str, Meta(description="Maximum number of missing instances: a number or a percentage, rounded down.")
    ] = "25%"


class Strategy(Api, frozen=True):
    """How the workers of a job without launcher are replaced when their template changes."""

    type: Annotated[
        Literal["Recreate", "RollingUpdate"],
        Meta(
            description="Recreate: delete all old workers first. RollingUpdate (default): replace instance by instance."
        ),
    ] = "RollingUpdate"
    rolling_update: RollingUpdate | UnsetType = UNSET


class Workers(Api, frozen=True):
    """The worker pods; workersPerJobInstance sets their number per instance."""

    template: Annotated[
        dict[str, Any],
        Meta(description="The worker pods, as a Kubernetes pod template: metadata, and spec as of a Pod."),
    ]
    replicas: (
        Annotated[int, Meta(ge=1, description="Workers of one instance, default 1; the same as workersPerJobInstance.")]
        | UnsetType
    ) = UNSET
    strategy: Strategy | UnsetType = UNSET


class Checkpoint(Api, frozen=True):
    """How a job saves its state before it moves: set either command or signal. It applies to the main container of the
    launcher or, in a job without launcher, of the affected workers."""

    command: (
        Annotated[
            tuple[str, ...],
            Meta(description="Command to run in the container, without a shell; SIGTERM follows when it has ended."),
        ]
        | UnsetType
    ) = UNSET
    signal: (
        Annotated[
            CheckpointSignal,
            Meta(
                description="Signal to the first process of the container, which then has gracePeriodSeconds to "
                "end; default SIGTERM. Open MPI's mpirun passes SIGUSR1 and SIGUSR2 on to every rank."
            ),
        ]
        | UnsetType
    ) = UNSET


class PreFlight(Api, frozen=True):
    """Muster's own: checks of the nodes that a job with launcher or interactive was given. They run before the launcher
    is created, while the workers only wait. A node that fails is replaced by another one."""

    checks: Annotated[tuple[str, ...], Meta(description="Names of checks of the agents, 1 to 16; see docs/checks.md.")]
    timeout_seconds: Annotated[
        int,
        Meta(
            ge=10,
            le=3600,
            description="How long to wait for the results; a node without a result by then is UNKNOWN.",
        ),
    ] = 300
    must_pass: Annotated[
        bool, Meta(description="Reject nodes that are UNKNOWN too. By default the job starts, and an Event reports it.")
    ] = False


class HealthPolicy(Api, frozen=True):
    """Muster's own: what to do about bad hardware under this job."""

    tolerate_faulty: Annotated[bool, Meta(description="Also run on nodes that Muster has tainted. Default false.")] = (
        False
    )
    on_fault: Annotated[
        Literal["Keep", "Move", "Fail"],
        Meta(
            description="When a node or IPU under the running job goes bad: Keep the job there (default), Move it to "
            "healthy hardware, which does not count towards backOffLimit, or let it Fail."
        ),
    ] = "Keep"
    on_straggler: (
        Annotated[
            Literal["continue", "notify", "checkpoint-and-move", "stop"],
            Meta(
                description="When the step times of the running job show a slow rank: the annotation "
                "muster.dev/on-straggler of the pods that are created from then on (docs/in-flight.md). stop suspends "
                "the job. The policy has to allow evictions and suspensions."
            ),
        ]
        | UnsetType
    ) = UNSET
    checkpoint: Checkpoint | UnsetType = UNSET
    grace_period_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=86400,
                description="With Move: how long a pod has to save its state and to end; default: its "
                "terminationGracePeriodSeconds.",
            ),
        ]
        | UnsetType
    ) = UNSET
    pre_flight: PreFlight | UnsetType = UNSET


class IPUJobSpec(Api, frozen=True):
    """What to run, and on how many IPUs."""

    # jobInstances and ipusPerJobInstance are always set after the mutating webhook: see crd.py
    workers: Workers
    job_instances: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INSTANCES_LIMIT,
                description="Number of instances, each on its own partition. Required, except in jobs of the "
                "1.0.0-alpha-5 form.",
            ),
        ]
        | UnsetType
    ) = UNSET
    ipus_per_job_instance: (
        Annotated[
            str,
            Meta(
                description="IPUs of one instance's partition: a power of two, as a string. Required, except in jobs "
                "of the 1.0.0-alpha-5 form."
            ),
        ]
        | UnsetType
    ) = UNSET
    workers_per_job_instance: (
        Annotated[
            str,
            Meta(
                description="Worker pods of one instance, each with its own GCD (an equal share of the IPUs), "
                "as a string; default 1."
            ),
        ]
        | UnsetType
    ) = UNSET
    worker_per_job_instance: (
        Annotated[str, Meta(description="Older spelling of workersPerJobInstance (1.0.3); sets that field.")]
        | UnsetType
    ) = UNSET
    model_replicas_per_worker: (
        Annotated[str, Meta(description="Model replicas within one worker, as a string.")] | UnsetType
    ) = UNSET
    model_replicas: (
        Annotated[
            str,
            Meta(description="1.0.0-alpha-5: model replicas; ipusPerJobInstance is this times ipusPerModelReplica."),
        ]
        | UnsetType
    ) = UNSET
    ipus_per_model_replica: (
        Annotated[str, Meta(description="1.0.0-alpha-5: IPUs of one model replica; see modelReplicas.")] | UnsetType
    ) = UNSET
    launcher: Launcher | UnsetType = UNSET
    interactive: Interactive | UnsetType = UNSET
    restart_policy: RestartPolicy | UnsetType = UNSET
    clean_pod_policy: (
        Annotated[
            CleanPodPolicy,
            Meta(
                description="Pods to delete when the job has finished: None (the default), Workers or All. All also "
                "releases the partitions and disables restarts."
            ),
        ]
        | UnsetType
    ) = UNSET
    suspend: Annotated[bool, Meta(description="Muster's own: while true, the job has no pods and no partitions.")] = (
        False
    )
    active_deadline_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Muster's own: the job fails this many seconds after its startTime, including restarts.",
            ),
        ]
        | UnsetType
    ) = UNSET
    ttl_seconds_after_finished: (
        Annotated[int, Meta(ge=0, description="Muster's own: the job is deleted this many seconds after its end.")]
        | UnsetType
    ) = UNSET
    health_policy: HealthPolicy | UnsetType = UNSET


class JobMetadata(Metadata, frozen=True):
    finalizers: tuple[str, ...] = ()


class IPUJob(Api, frozen=True):
    metadata: JobMetadata
    spec: IPUJobSpec
    status: IPUJobStatus = IPUJobStatus()


def workers_per_instance(spec: IPUJobSpec) -> int:
    """For a spec that passed admission."""
    for number in (spec.workers_per_job_instance, spec.worker_per_job_instance):
        if isinstance(number, str):
            return int(number)
    return spec.workers.replicas if isinstance(spec.workers.replicas, int) else 1


def instances(spec: IPUJobSpec) -> int:
    return spec.job_instances if isinstance(spec.job_instances, int) else 1


def ipus_per_instance(spec: IPUJobSpec) -> int:
    """For a spec that passed admission."""
    return int(spec.ipus_per_job_instance) if isinstance(spec.ipus_per_job_instance, str) else 1


def has_launcher(spec: IPUJobSpec) -> bool:
    """Distributed and interactive jobs have a launcher; in other jobs the workers run their own command."""
    return not isinstance(spec.launcher, UnsetType) or not isinstance(spec.interactive, UnsetType)


def jobs_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"


def decode_job(raw: bytes) -> IPUJob:
    """Raises msgspec.ValidationError, which names the path."""
    return msgspec.json.decode(raw, type=IPUJob)
