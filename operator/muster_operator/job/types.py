"""IPUJob (``ipujobs.graphcore.ai``, v1alpha1): what people submit, and what they are told of it.

The one source of the CRD: `make generate` writes it from these types, their bounds and descriptions. Fields are those
of the published CRD 1.2.0 (graphcore/helm-charts, tag 1.2.0), the older spellings (``workerPerJobInstance`` of 1.0.3;
``modelReplicas``, ``ipusPerModelReplica`` of 1.0.0-alpha-5), and, where a description says "Muster's own", ours.
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
INSTANCES_LIMIT = 4096  # of one job: a scale to billions must stay a number
EXIT_CODES = r"^([0-9]+(-[0-9]+)?)(,([0-9]+(-[0-9]+)?))*$"


class RestartPolicy(Api, frozen=True):
    """When the job is run again after it has ended."""

    type: Annotated[
        RestartType,
        Meta(description="Always, OnFailure, Never (of a job without restartPolicy), or ExitCode: by exitCodes."),
    ] = "Never"
    back_off_limit: Annotated[
        int, Meta(ge=0, description="How many restarts there are at most, after successes too; default 3.")
    ] = 3
    exit_codes: (
        Annotated[
            str,
            Meta(
                pattern=EXIT_CODES,
                description="With ExitCode: the exit codes that restart the job, as 1,3,128-255; default 128-255. "
                "Those of the launcher's containers and init containers count, and of workers that failed.",
            ),
        ]
        | UnsetType
    ) = UNSET


class Launcher(Api, frozen=True):
    """Of a distributed job: the pod that starts the processes in the workers. It runs in the workers' image, with their
    volumes. A job without one runs the workers' own command."""

    command: Annotated[tuple[str, ...], Meta(description="The command that triggers the job, mpirun for example.")]
    env: Annotated[tuple[dict[str, Any], ...], Meta(description="Environment variables of the launcher (EnvVar).")] = ()


class Interactive(Api, frozen=True):
    """Instead of launcher: a session that runs nothing by itself. People exec into its launcher pod."""

    ttl: Annotated[int, Meta(ge=1, description="How long the session lives, in seconds, from when it first runs.")]


class RollingUpdate(Api, frozen=True):
    """Bounds of a RollingUpdate; default 25% each. Percentages are of jobInstances; where both come to 0, one instance
    may be missing."""

    max_surge: Annotated[
        int | str, Meta(description="Instances above jobInstances: a number or a percentage, rounded up.")
    ] = "25%"
    max_unavailable: Annotated[
        int | str, Meta(description="Instances missing at most: a number or a percentage, rounded down.")
    ] = "25%"


class Strategy(Api, frozen=True):
    """How workers of a job without launcher are replaced when their template changes."""

    type: Annotated[
        Literal["Recreate", "RollingUpdate"],
        Meta(description="Recreate: all old workers go first. RollingUpdate, the default: instance by instance."),
    ] = "RollingUpdate"
    rolling_update: RollingUpdate | UnsetType = UNSET


class Workers(Api, frozen=True):
    """The pods that do the work: for each instance as many as workersPerJobInstance says."""

    template: Annotated[
        dict[str, Any],
        Meta(description="The worker pods, as a Kubernetes pod template: metadata, and spec as of a Pod."),
    ]
    replicas: (
        Annotated[
            int, Meta(ge=1, description="Workers of one instance, default 1; workersPerJobInstance says the same.")
        ]
        | UnsetType
    ) = UNSET
    strategy: Strategy | UnsetType = UNSET


class Checkpoint(Api, frozen=True):
    """What saves a job's state before it moves: one of both, in the main container of the launcher, or, without one,
    of the workers concerned."""

    command: (
        Annotated[
            tuple[str, ...],
            Meta(description="Run in the container, without a shell; SIGTERM follows once it has ended."),
        ]
        | UnsetType
    ) = UNSET
    signal: (
        Annotated[
            CheckpointSignal,
            Meta(
                description="Sent to the container's first process, which then has gracePeriodSeconds to end; default "
                "SIGTERM. Open MPI's mpirun passes SIGUSR1 and SIGUSR2 on to every rank."
            ),
        ]
        | UnsetType
    ) = UNSET


class PreFlight(Api, frozen=True):
    """Muster's own: checks of the nodes that a job with launcher or interactive was given, before the launcher is made:
    its workers only wait then. A node that fails is left for another one."""

    checks: Annotated[tuple[str, ...], Meta(description="Names of the agents' checks, 1 to 16; see docs/checks.md.")]
    timeout_seconds: Annotated[
        int,
        Meta(
            ge=10,
            le=3600,
            description="How long the answers are waited for; a node that has not answered by then is UNKNOWN.",
        ),
    ] = 300
    must_pass: Annotated[
        bool, Meta(description="A node that is UNKNOWN is left, too. By default the job starts, and an Event says so.")
    ] = False


class HealthPolicy(Api, frozen=True):
    """Muster's own: what bad hardware does to this job."""

    tolerate_faulty: Annotated[
        bool, Meta(description="Run on nodes that Muster has tainted, too. By default never.")
    ] = False
    on_fault: Annotated[
        Literal["Keep", "Move", "Fail"],
        Meta(
            description="When a node or IPU under the running job goes bad: Keep it there (the default), Move it to "
            "healthy ones, which backOffLimit does not count, or let it Fail."
        ),
    ] = "Keep"
    checkpoint: Checkpoint | UnsetType = UNSET
    grace_period_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=86400,
                description="With Move: how long a pod has to save its state and to end; default: its own "
                "terminationGracePeriodSeconds.",
            ),
        ]
        | UnsetType
    ) = UNSET
    pre_flight: PreFlight | UnsetType = UNSET


class IPUJobSpec(Api, frozen=True):
    """What is to run, and on how many IPUs."""

    # jobInstances and ipusPerJobInstance are there once the defaulting webhook has seen it: see crd.py
    workers: Workers
    job_instances: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INSTANCES_LIMIT,
                description="How many instances run, each on a partition of its own. Required, but by jobs of the "
                "1.0.0-alpha-5 form.",
            ),
        ]
        | UnsetType
    ) = UNSET
    ipus_per_job_instance: (
        Annotated[
            str,
            Meta(
                description="IPUs of one instance's partition: a power of two, as text. Required, but by jobs of the "
                "1.0.0-alpha-5 form."
            ),
        ]
        | UnsetType
    ) = UNSET
    workers_per_job_instance: (
        Annotated[
            str,
            Meta(
                description="Worker pods of one instance, each with a GCD of its own (an equal share of its IPUs), "
                "as text; default 1."
            ),
        ]
        | UnsetType
    ) = UNSET
    worker_per_job_instance: (
        Annotated[str, Meta(description="Older spelling of workersPerJobInstance (1.0.3), which is filled in.")]
        | UnsetType
    ) = UNSET
    model_replicas_per_worker: (
        Annotated[str, Meta(description="Model replicas within one worker, as text.")] | UnsetType
    ) = UNSET
    model_replicas: (
        Annotated[
            str,
            Meta(description="1.0.0-alpha-5: model replicas; times ipusPerModelReplica it is ipusPerJobInstance."),
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
                description="Which pods go once the job is over: None (the default), Workers or All. With All the "
                "partitions go, too, and nothing restarts."
            ),
        ]
        | UnsetType
    ) = UNSET
    suspend: Annotated[bool, Meta(description="Muster's own: no pods and no partition while true.")] = False
    active_deadline_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Muster's own: the job fails so long after its startTime, in seconds, restarts included.",
            ),
        ]
        | UnsetType
    ) = UNSET
    ttl_seconds_after_finished: (
        Annotated[int, Meta(ge=0, description="Muster's own: the job is deleted so long after its end, in seconds.")]
        | UnsetType
    ) = UNSET
    health_policy: HealthPolicy | UnsetType = UNSET


class IPUJobCondition(Api, frozen=True):
    """One thing that is so, or is not."""

    type: Annotated[
        str, Meta(description="Pending, Running, Restarting, Suspended, Complete, Failed or HealthDegraded.")
    ]
    status: Annotated[str, Meta(description="True, False or Unknown.")]
    reason: Annotated[str, Meta(description="Why, as one word for programs.")] = ""
    message: Annotated[str, Meta(description="Why, for people.")] = ""
    observed_generation: Annotated[int, Meta(description="The generation of the spec that it was judged by.")] = 0
    last_update_time: Annotated[str, Meta(description="When anything of it last changed.")] = ""
    last_transition_time: Annotated[str, Meta(description="When its status last changed.")] = ""


class WorkersStatus(Api, frozen=True):
    """Worker pods by how they are."""

    active: Annotated[int, Meta(description="Pods that have not ended.")] = 0
    succeeded: Annotated[int, Meta(description="Pods that ended well.")] = 0
    failed: Annotated[int, Meta(description="Pods that failed.")] = 0


class GangHoldStatus(Api, frozen=True, omit_defaults=False):
    """Muster's own: what could not start together, and so holds nothing for a while."""

    instances: Annotated[tuple[int, ...], Meta(description="Those that hold nothing; with a launcher all.")] = ()
    count: Annotated[int, Meta(description="How often that was so since the job last ran as a whole.")] = 0
    until: Annotated[str | None, Meta(description="When they try again; empty while they do.")] = None
    message: Annotated[str, Meta(description="What kept them from starting.")] = ""


class JobMove(Api, frozen=True, omit_defaults=False):
    """Of a job, or of some of its instances, to other hardware."""

    start_time: Annotated[str, Meta(description="When it was decided.")] = ""
    attempt: Annotated[int, Meta(description="The attempt that began with it.")] = 0
    nodes: Annotated[tuple[str, ...], Meta(description="Where its pods were.")] = ()
    instances: Annotated[tuple[int, ...], Meta(description="Which instances moved; empty: the whole job.")] = ()
    reason: Annotated[str, Meta(description="What was bad, as the reason of the condition HealthDegraded.")] = ""
    message: Annotated[str, Meta(description="Why.")] = ""


class RejectedNode(Api, frozen=True, omit_defaults=False):
    """One that failed a pre-flight check."""

    name: Annotated[str, Meta(description="Of the node.")]
    found_time: Annotated[str, Meta(description="When it was found.")] = ""
    message: Annotated[str, Meta(description="The checks, and what was found.")] = ""


class PreFlightStatus(Api, frozen=True, omit_defaults=False):
    """Muster's own: how far the pre-flight checks are."""

    # written, the message is never empty: an API server of 1.20 takes "" in a new object for null

    state: Annotated[
        Literal["Waiting", "Checking", "Passed", "Failed"],
        Meta(description="Waiting for the workers, Checking their nodes, Passed, or Failed: those nodes are left."),
    ] = "Waiting"
    attempt: Annotated[int, Meta(description="The attempt that it is about.")] = 0
    start_time: Annotated[str | None, Meta(description="When the nodes were asked.")] = None
    end_time: Annotated[str | None, Meta(description="When it was decided.")] = None
    message: Annotated[str, Meta(description="What came of it.")] = ""
    left: Annotated[
        tuple[RejectedNode, ...], Meta(description="Nodes that failed; this job keeps away from each for an hour.")
    ] = ()


class FullResetCheck(Api, frozen=True, omit_defaults=False):
    """Muster's own: Poplar has asked for a FULL_RESET, and agents are asked what they find of their IPUs."""

    start_time: Annotated[str, Meta(description="When they were asked.")] = ""
    nodes: Annotated[tuple[str, ...], Meta(description="Theirs.")] = ()


class IPUJobStatus(Api, frozen=True, omit_defaults=False):
    """How the job is. attempt, adoptedTemplate, selector, firstRunningTime, nextAttemptTime, givenBack, preFlight,
    suspected, observedGeneration and all about moves are Muster's own."""

    desired_replicas: Annotated[int, Meta(description="Instances that are wanted.")] = 0
    last_message: Annotated[str, Meta(description="What was last done, or is waited for.")] = ""
    current_replicas: Annotated[
        int, Meta(description="Instances whose partition is ready and whose pods were made.")
    ] = 0
    launcher_status: Annotated[
        LauncherStatus, Meta(description="Pending, Running, Completed or Failed; follows from the conditions.")
    ] = "Pending"
    ipu_partition_created: Annotated[bool, Meta(description="Every instance has its partition.")] = field(
        name="iPUPartitionCreated", default=False
    )
    restart_count: Annotated[int, Meta(description="How often the job was run again.")] = 0
    attempt: Annotated[
        int,
        Meta(description="Rises with each restart and each change of template: partitions are reset once for each."),
    ] = 0
    moves: Annotated[int, Meta(description="How often it left bad hardware; no restart counts as one.")] = 0
    adopted_template: Annotated[
        str,
        Meta(
            description="Digest of the template that pods without the label muster.dev/template count as of: that of "
            "when they were first seen. Empty: there are none."
        ),
    ] = ""
    move_starts: Annotated[tuple[str, ...], Meta(description="When the last of them were decided.")] = ()
    last_move: Annotated[JobMove | None, Meta(description="The last of them.")] = None
    instance_moves: Annotated[
        dict[str, int],
        Meta(description="By instance, how often that moved alone: it counts on top of attempt for its partition."),
    ] = field(default_factory=dict)
    selector: Annotated[str, Meta(description="Of the worker pods, for autoscalers.")] = ""
    start_time: Annotated[str | None, Meta(description="When the job was taken up.")] = None
    first_running_time: Annotated[
        str | None, Meta(description="When the job first ran: an interactive session's ttl counts from it.")
    ] = None
    next_attempt_time: Annotated[
        str | None, Meta(description="Of a job that restarts: when the next attempt begins.")
    ] = None
    given_back: Annotated[
        GangHoldStatus | None, Meta(description="Partitions that were given back, as not all pods could start.")
    ] = None
    pre_flight: Annotated[PreFlightStatus | None, Meta(description="The pre-flight checks of the last attempt.")] = None
    suspected: Annotated[
        FullResetCheck | None, Meta(description="Nodes whose agents were asked last, as Poplar asked for a FULL_RESET.")
    ] = None
    completion_time: Annotated[str | None, Meta(description="When the job ended.")] = None
    last_reconcile_time: Annotated[str | None, Meta(description="When this status last changed.")] = None
    observed_generation: Annotated[int, Meta(description="The generation of the spec that this follows.")] = 0
    workers_status: WorkersStatus = WorkersStatus()
    conditions: Annotated[tuple[IPUJobCondition, ...], Meta(description="What led to launcherStatus.")] = ()


class JobMetadata(Metadata, frozen=True):
    finalizers: tuple[str, ...] = ()


class IPUJob(Api, frozen=True):
    metadata: JobMetadata
    spec: IPUJobSpec
    status: IPUJobStatus = IPUJobStatus()


def workers_per_instance(spec: IPUJobSpec) -> int:
    """Of a spec that passed admission."""
    for said in (spec.workers_per_job_instance, spec.worker_per_job_instance):
        if isinstance(said, str):
            return int(said)
    return spec.workers.replicas if isinstance(spec.workers.replicas, int) else 1


def instances(spec: IPUJobSpec) -> int:
    return spec.job_instances if isinstance(spec.job_instances, int) else 1


def ipus_per_instance(spec: IPUJobSpec) -> int:
    """Of a spec that passed admission."""
    return int(spec.ipus_per_job_instance) if isinstance(spec.ipus_per_job_instance, str) else 1


def has_launcher(spec: IPUJobSpec) -> bool:
    """Distributed and interactive jobs have one; of others the workers run their own command."""
    return not isinstance(spec.launcher, UnsetType) or not isinstance(spec.interactive, UnsetType)


def jobs_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"


def decode_job(raw: bytes) -> IPUJob:
    """Raises msgspec.ValidationError with the path in its words."""
    return msgspec.json.decode(raw, type=IPUJob)
