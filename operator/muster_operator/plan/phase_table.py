"""Plans the next actions for one job from its observed state. Pure and idempotent.

PHASES is the whole decision: the first phase that applies makes the plan. Then each of AFTER_EVERY_PHASE may add to it.
Every function here is pure, and each row is one function in one module of this folder.

A restart, a move and a change of template each begin a new attempt, which the status records first. From then on pods
of earlier attempts are only deleted, the partitions are reset, and all new pods belong to the new attempt (42).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from muster_operator.job.snapshot import Action, JobPlan, JobSetup, Snapshot, WithdrawRequests
from muster_operator.job.types import IPUJob
from muster_operator.plan import attempt_end, gang_hold, instance_restart, move, teardown, template_change, workload
from muster_operator.plan.hardware import full_reset, preflight
from muster_operator.plan.job_state import JobState


@dataclass(frozen=True)
class JobPhase:
    """decide: returns None if the phase does not apply. condition: of the status, which the phase sets or depends on.
    when, action: for people; docs/ipujob.md shows them."""

    name: str
    decide: Callable[[JobState], JobPlan | None]
    condition: str
    when: str
    action: str


@dataclass(frozen=True)
class PlanAddition:
    """extend: adds to the plan of a phase."""

    name: str
    extend: Callable[[JobState, JobPlan], JobPlan]
    action: str


def update_requests(state: JobState, decided: JobPlan) -> JobPlan:
    """Requests to agents that do not depend on the phase. Requests that nothing waits for are withdrawn, because a node
    accepts only a few."""
    job, snapshot = state.job, state.snapshot
    wanted = preflight.request_ids(job) | full_reset.request_ids(job, snapshot.now)
    before: tuple[Action, ...] = tuple(
        WithdrawRequests(node, wanted)
        for node, requests in sorted((snapshot.requests or {}).items())
        if set(requests) - wanted
    )
    moments = [each for each in (decided.again_s, full_reset.time_left_s(job, snapshot.now)) if each is not None]
    checks, answers = full_reset.request_checks(job, snapshot), full_reset.report_answers(job, snapshot)
    return replace(decided, actions=(*before, *checks, *decided.actions, *answers), again_s=min(moments, default=None))


# fmt: off
PHASES: tuple[JobPhase, ...] = (
    JobPhase("deleting", teardown.delete_job, "",
             "The job has a `deletionTimestamp`.",
             "Deletes its pods, releases its partitions, then removes the finalizer."),
    JobPhase("new", teardown.add_finalizer, "",
             "The job has no finalizer yet.",
             "Adds the finalizer before anything else is created."),
    JobPhase("finished", teardown.clean_up, "Complete, Failed",
             "The job has completed or failed.",
             "Cleans up according to `cleanPodPolicy`; deletes the job after `ttlSecondsAfterFinished`."),
    JobPhase("suspended", teardown.suspend, "Suspended",
             "`spec.suspend` is true, or the job was resumed before everything was gone.",
             "Deletes its pods, then releases its partitions."),
    JobPhase("faulted", move.leave_bad_hardware, "HealthDegraded, Restarting, Failed",
             "Bad hardware with `onFault` Move or Fail; an instance lost with its node; a failed pre-flight check.",
             "Records a new attempt on other hardware (Move), or the end of the job (Fail)."),
    JobPhase("over", attempt_end.end_attempt, "Complete, Failed, Restarting",
             "The attempt has ended, or the session's `ttl` or `activeDeadlineSeconds` has passed.",
             "Records how the job ended, or the next attempt and its start time."),
    JobPhase("instanceOver", instance_restart.restart_instances, "",
             "An instance of a job without launcher has ended, others continue, and `restartPolicy` restarts it.",
             "Records a new attempt of this instance alone, and its start time."),
    JobPhase("changed", template_change.begin_replacement, "Restarting",
             "`workers.template` has changed since the pods were created.",
             "Records a new attempt: of all pods, or of one instance after the other (RollingUpdate)."),
    JobPhase("givenBack", gang_hold.give_back_or_retry, "Pending",
             "The job has held partitions for `hold_timeout_s` without starting, or the time of its next try has come.",
             "After `hold_timeout_s`: records that the job gives its partitions back, and when it tries again. Its "
             "pods and partitions are then superfluous: when the operator looks at the job again, the phase `running` "
             "applies and removes them. At the recorded time: records the new try."),
    JobPhase("restarting", workload.wait_for_attempt, "Restarting",
             "Pods of an earlier attempt are left, or `status.nextAttemptTime` has not been reached.",
             "Deletes those pods, releases partitions that are no longer wanted, and waits."),
    JobPhase("preflight", preflight.check_nodes, "Pending",
             "The job has `preFlight`, all workers run and wait for the launcher, and the checks can begin, are "
             "complete, or have timed out.",
             "Records that the checks begin, or their results."),
    JobPhase("running", workload.start_and_keep_running, "Pending, Running",
             "In every other case.",
             "Deletes superfluous pods, releases superfluous partitions, and requests missing ones. Then creates the "
             "ConfigMap, ServiceAccount, Role and RoleBinding, then the workers. With `preFlight`, requests the "
             "checks and waits for their results. Last it creates the launcher."),
)
AFTER_EVERY_PHASE: tuple[PlanAddition, ...] = (
    PlanAddition("hardware", move.report_hardware,
                 "Records the condition HealthDegraded and its Events; asks V-IPU whether there is room to move to."),
    PlanAddition("template", template_change.adopt_template,
                 "Records the template of pods that an earlier version of Muster created (see A changed template)."),
    PlanAddition("requests", update_requests,
                 "Asks agents for checks after a FULL_RESET; withdraws requests whose results are no longer needed."),
)
# fmt: on


def plan(job: IPUJob, snapshot: Snapshot, setup: JobSetup) -> JobPlan:
    """Plan a job whose spec has passed admission, with defaults filled in."""
    state = JobState(job, snapshot, setup)
    decided = next(found for phase in PHASES if (found := phase.decide(state)) is not None)
    for addition in AFTER_EVERY_PHASE:
        decided = addition.extend(state, decided)
    return decided
