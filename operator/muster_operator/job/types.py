"""IPUJob (``ipujobs.graphcore.ai``, v1alpha1): its spec and its status.

These types are the only source of the CRD: `make generate` writes it from the types, their bounds and their
descriptions. Fields are those of the published CRD 1.2.0 (graphcore/helm-charts, tag 1.2.0), the older spellings
(``workerPerJobInstance`` of 1.0.3; ``modelReplicas``, ``ipusPerModelReplica`` of 1.0.0-alpha-5), and Muster's own
fields, which are marked as such.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from muster_kube.api.objects import Api, Metadata

GROUP = "graphcore.ai"
VERSION = "v1alpha1"
KIND = "IPUJob"
PLURAL = "ipujobs"
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = "ipu.finalizers.graphcore.ai"

RestartType = Literal["Always", "OnFailure", "Never", "ExitCode"]
CleanPodPolicy = Literal["None", "All", "Workers"]
LauncherStatus = Literal["Pending", "Running", "Completed", "Failed"]
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


class IPUJobCondition(Api, frozen=True):
    """One condition of the job."""

    type: Annotated[
        str, Meta(description="Pending, Running, Restarting, Suspended, Complete, Failed, HealthDegraded or Invalid.")
    ]
    status: Annotated[str, Meta(description="True, False or Unknown.")]
    reason: Annotated[str, Meta(description="Why, as one word for programs.")] = ""
    message: Annotated[str, Meta(description="Why, for people.")] = ""
    observed_generation: Annotated[int, Meta(description="Generation of the spec that the condition refers to.")] = 0
    last_update_time: Annotated[str, Meta(description="When any field of the condition last changed.")] = ""
    last_transition_time: Annotated[str, Meta(description="When its status last changed.")] = ""


class WorkersStatus(Api, frozen=True):
    """Number of worker pods by state."""

    active: Annotated[int, Meta(description="Pods that have not ended.")] = 0
    succeeded: Annotated[int, Meta(description="Pods that succeeded.")] = 0
    failed: Annotated[int, Meta(description="Pods that failed.")] = 0


class GangHoldStatus(Api, frozen=True, omit_defaults=False):
    """Muster's own: instances that could not start together and released their partitions."""

    instances: Annotated[
        tuple[int, ...], Meta(description="Instances without partitions now; with a launcher all of them.")
    ] = ()
    count: Annotated[int, Meta(description="Number of times since the whole job last ran.")] = 0
    until: Annotated[str | None, Meta(description="When they try again; empty while they do.")] = None
    message: Annotated[str, Meta(description="Why they could not start.")] = ""


class JobMove(Api, frozen=True, omit_defaults=False):
    """Move of a job, or of some of its instances, to other hardware."""

    start_time: Annotated[str, Meta(description="When the move was decided.")] = ""
    attempt: Annotated[int, Meta(description="The attempt that began with the move.")] = 0
    nodes: Annotated[tuple[str, ...], Meta(description="Nodes that its pods were on.")] = ()
    instances: Annotated[tuple[int, ...], Meta(description="Instances that moved; empty: the whole job.")] = ()
    reason: Annotated[str, Meta(description="The problem, as the reason of the condition HealthDegraded.")] = ""
    message: Annotated[str, Meta(description="Why.")] = ""


class InstanceRestart(Api, frozen=True, omit_defaults=False):
    """Muster's own: restarts of one instance of a job without launcher, while others continued."""

    count: Annotated[int, Meta(description="Their number; added to attempt for its partition.")] = 0
    attempt: Annotated[int, Meta(description="The instance's attempt that began with the latest one.")] = 0
    start_time: Annotated[str, Meta(description="When the latest one began, or will begin.")] = ""
    in_a_row: Annotated[
        int, Meta(description="Restarts without ten minutes of running in between; the delay grows with them.")
    ] = 0


class RejectedNode(Api, frozen=True, omit_defaults=False):
    """A node that failed a pre-flight check."""

    name: Annotated[str, Meta(description="Name of the node.")]
    found_time: Annotated[str, Meta(description="When it failed.")] = ""
    message: Annotated[str, Meta(description="The checks and their findings.")] = ""


class PreFlightStatus(Api, frozen=True, omit_defaults=False):
    """Muster's own: progress of the pre-flight checks."""

    # always written: an API server of 1.20 takes "" in a new object for null

    state: Annotated[
        Literal["Waiting", "Checking", "Passed", "Failed"],
        Meta(
            description="Waiting for the workers, Checking their nodes, Passed, or Failed: the job leaves those nodes."
        ),
    ] = "Waiting"
    attempt: Annotated[int, Meta(description="The attempt that the checks belong to.")] = 0
    start_time: Annotated[str | None, Meta(description="When the checks were requested.")] = None
    end_time: Annotated[str | None, Meta(description="When the result was decided.")] = None
    message: Annotated[str, Meta(description="The result, for people.")] = ""
    left: Annotated[
        tuple[RejectedNode, ...], Meta(description="Nodes that failed; this job avoids each of them for an hour.")
    ] = ()


class FullResetCheck(Api, frozen=True, omit_defaults=False):
    """Muster's own: Poplar requested a FULL_RESET, and the agents of these nodes were asked to check their IPUs."""

    start_time: Annotated[str, Meta(description="When the checks were requested.")] = ""
    nodes: Annotated[tuple[str, ...], Meta(description="Theirs.")] = ()


class IPUJobStatus(Api, frozen=True, omit_defaults=False):
    """Status of the job. attempt, adoptedTemplate, selector, firstRunningTime, nextAttemptTime, instanceRestarts,
    givenBack, preFlight, suspected, observedGeneration and all fields about moves are Muster's own."""

    desired_replicas: Annotated[int, Meta(description="Number of instances wanted.")] = 0
    last_message: Annotated[str, Meta(description="What was last done, or what the job waits for.")] = ""
    current_replicas: Annotated[int, Meta(description="Instances whose partition is ready and whose pods exist.")] = 0
    launcher_status: Annotated[
        LauncherStatus, Meta(description="Pending, Running, Completed or Failed; derived from the conditions.")
    ] = "Pending"
    ipu_partition_created: Annotated[
        bool, Meta(description="Every instance has its partition. Of a suspended job: not all are released yet.")
    ] = field(name="iPUPartitionCreated", default=False)
    restart_count: Annotated[int, Meta(description="Number of restarts, of the job and of single instances.")] = 0
    attempt: Annotated[
        int,
        Meta(
            description="Increases with each restart and each change of template; partitions are reset once for each."
        ),
    ] = 0
    moves: Annotated[
        int, Meta(description="Number of moves away from bad hardware; they do not count as restarts.")
    ] = 0
    adopted_template: Annotated[
        str,
        Meta(
            description="Digest of the template that applies to pods without the label muster.dev/template: the one "
            "in use when they were first seen. Empty: there are no such pods."
        ),
    ] = ""
    move_starts: Annotated[tuple[str, ...], Meta(description="When the latest moves were decided.")] = ()
    last_move: Annotated[JobMove | None, Meta(description="The latest move.")] = None
    instance_moves: Annotated[
        dict[str, int],
        Meta(description="Number of moves of single instances, by instance; added to attempt for their partitions."),
    ] = field(default_factory=dict)
    instance_restarts: Annotated[
        dict[str, InstanceRestart],
        Meta(description="Restarts of single instances while others continued, by instance; see restartCount for all."),
    ] = field(default_factory=dict)
    selector: Annotated[
        str, Meta(description="Label selector of the first worker of each instance, for autoscalers.")
    ] = ""
    start_time: Annotated[str | None, Meta(description="When the operator accepted the job.")] = None
    first_running_time: Annotated[
        str | None, Meta(description="When the job first ran: the ttl of an interactive session counts from it.")
    ] = None
    next_attempt_time: Annotated[str | None, Meta(description="Of a restarting job: when the next attempt begins.")] = (
        None
    )
    given_back: Annotated[
        GangHoldStatus | None, Meta(description="Partitions that were released because not all pods could start.")
    ] = None
    pre_flight: Annotated[PreFlightStatus | None, Meta(description="Pre-flight checks of the latest attempt.")] = None
    suspected: Annotated[
        FullResetCheck | None,
        Meta(
            description="Nodes whose agents were last asked to check their IPUs, because Poplar requested a FULL_RESET."
        ),
    ] = None
    completion_time: Annotated[str | None, Meta(description="When the job ended.")] = None
    last_reconcile_time: Annotated[str | None, Meta(description="When this status last changed.")] = None
    observed_generation: Annotated[int, Meta(description="Generation of the spec that this status reflects.")] = 0
    workers_status: WorkersStatus = WorkersStatus()
    conditions: Annotated[
        tuple[IPUJobCondition, ...], Meta(description="Conditions of the job; launcherStatus derives from them.")
    ] = ()


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
