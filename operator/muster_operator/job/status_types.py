"""The status of an IPUJob. As with its spec (types.py), the CRD is made from these types."""

from typing import Annotated, Literal

from msgspec import Meta, field

from muster_kube.api.objects import Api

LauncherStatus = Literal["Pending", "Running", "Completed", "Failed"]


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
    until: Annotated[str | None, Meta(description="When the instances try again; empty while they do.")] = None
    message: Annotated[str, Meta(description="Why they could not start.")] = ""


class JobMove(Api, frozen=True, omit_defaults=False):
    """Move of a job, or of some of its instances, to other hardware."""

    start_time: Annotated[str, Meta(description="When the move was decided.")] = ""
    attempt: Annotated[int, Meta(description="The attempt that began with the move.")] = 0
    nodes: Annotated[tuple[str, ...], Meta(description="Nodes that its pods were on.")] = ()
    instances: Annotated[tuple[int, ...], Meta(description="Instances that moved; empty: the whole job.")] = ()
    reason: Annotated[str, Meta(description="The problem, as the reason of the condition HealthDegraded.")] = ""
    message: Annotated[str, Meta(description="Why the job or its instances moved.")] = ""


class InstanceRestart(Api, frozen=True, omit_defaults=False):
    """Muster's own: restarts of one instance of a job without launcher, while others continued."""

    count: Annotated[int, Meta(description="Number of restarts; added to attempt for its partition.")] = 0
    attempt: Annotated[int, Meta(description="The instance's attempt that began with the latest restart.")] = 0
    start_time: Annotated[str, Meta(description="When the latest restart began, or will begin.")] = ""
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
    nodes: Annotated[tuple[str, ...], Meta(description="The nodes that were asked.")] = ()


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
