"""What is to be done about one job now: a value from values. Doing it again changes nothing.

PHASES is the whole decision: the first phase that applies to the job makes its plan. Then each of AFTER_EVERY_PHASE may
add to it. Every function here is pure, and each row is one function in one module of this folder.

A restart, a move and a change of template are new attempts, in the status before anything else: from then on pods of
the attempt before it only go, and what is made, partitions reset first, is of the new one (42).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from muster_operator.job.snapshot import Action, JobPlan, JobSetup, Snapshot, WithdrawRequests
from muster_operator.job.types import IPUJob
from muster_operator.plan import (
    attempt_end,
    full_reset,
    gang_hold,
    move,
    preflight,
    teardown,
    template_change,
    workload,
)
from muster_operator.plan.job_state import JobState


@dataclass(frozen=True)
class JobPhase:
    """decide: None where the phase does not apply. condition: of the status, which the phase sets or goes by. when,
    action: for people; docs/ipujob.md shows them."""

    name: str
    decide: Callable[[JobState], JobPlan | None]
    condition: str
    when: str
    action: str


@dataclass(frozen=True)
class PlanAddition:
    """extend: the plan of a phase, with what is added to it."""

    name: str
    extend: Callable[[JobState, JobPlan], JobPlan]
    action: str


def update_requests(state: JobState, decided: JobPlan) -> JobPlan:
    """What is asked of agents whatever else is done; and what nobody waits for any more is withdrawn, as it would keep
    its place among the few requests that a node has."""
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
             "Deletes its pods, then frees its partitions, then removes the finalizer."),
    JobPhase("new", teardown.add_finalizer, "",
             "The job has no finalizer yet.",
             "Adds the finalizer, before anything else is made."),
    JobPhase("finished", teardown.clean_up, "Complete, Failed",
             "The job has completed or failed.",
             "Cleans up by `cleanPodPolicy`; deletes the job once `ttlSecondsAfterFinished` has passed."),
    JobPhase("suspended", teardown.suspend, "Suspended",
             "`spec.suspend` is true, or the job was resumed before all of it had gone.",
             "Deletes its pods, then frees its partitions."),
    JobPhase("faulted", move.leave_bad_hardware, "HealthDegraded, Restarting, Failed",
             "Bad hardware, and `onFault` says Move or Fail; an instance lost with its node; a failed pre-flight.",
             "Writes a new attempt on other hardware (Move), or the end of the job (Fail)."),
    JobPhase("over", attempt_end.end_attempt, "Complete, Failed, Restarting",
             "The attempt has ended, or the session's `ttl` or `activeDeadlineSeconds` has passed.",
             "Writes how the job ended, or the next attempt and when it begins."),
    JobPhase("changed", template_change.begin_replacement, "Restarting",
             "`workers.template` has changed since the pods were made.",
             "Writes a new attempt: of all pods, or of one instance after the other (RollingUpdate)."),
    JobPhase("held", gang_hold.give_back_or_retry, "Pending",
             "Partitions were held for `hold_timeout_s` without a start, or the wait after that is over.",
             "Writes that they are given back and until when, or that they are tried again."),
    JobPhase("restarting", workload.wait_for_attempt, "Restarting",
             "Pods of an earlier attempt are left, or `status.nextAttemptTime` has not come.",
             "Deletes those pods, frees partitions that are not wanted any more, and waits."),
    JobPhase("preflight", preflight.check_nodes, "Pending",
             "All workers wait for pre-flight checks that have not begun, are answered, or take too long.",
             "Writes that the checks begin, or what they found."),
    JobPhase("running", workload.start_and_keep_running, "Pending, Running",
             "In every other case.",
             "Deletes what is superfluous, takes partitions, makes the small objects, workers and launcher."),
)
AFTER_EVERY_PHASE: tuple[PlanAddition, ...] = (
    PlanAddition("hardware", move.report_hardware,
                 "Writes the condition HealthDegraded and its Events; asks whether there is room to move to."),
    PlanAddition("template", template_change.adopt_template,
                 "Writes which template pods without the label `muster.dev/template` count as of."),
    PlanAddition("requests", update_requests,
                 "Asks agents for checks after a FULL_RESET; withdraws requests that nobody waits for."),
)
# fmt: on


def plan(job: IPUJob, snapshot: Snapshot, setup: JobSetup) -> JobPlan:
    """Of a job whose spec admission lets through, defaults filled in."""
    state = JobState(job, snapshot, setup)
    decided = next(found for phase in PHASES if (found := phase.decide(state)) is not None)
    for addition in AFTER_EVERY_PHASE:
        decided = addition.extend(state, decided)
    return decided
