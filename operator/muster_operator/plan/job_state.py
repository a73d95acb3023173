"""The observed state of one job: what belongs to it and what is missing. Plans are made from these facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from muster_operator.job import lost_pods, names, pod_outcome, timers
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.pod_outcome import AttemptEnd
from muster_operator.job.snapshot import JobPod, JobSetup, Snapshot
from muster_operator.job.status import RESTARTING, RUNNING, has_condition, is_finished
from muster_operator.job.types import (
    FINALIZER,
    IPUJob,
    has_launcher,
    instances,
    ipus_per_instance,
    workers_per_instance,
)
from muster_operator.plan import attempts
from muster_operator.plan import rollout as rolling
from muster_operator.plan.rollout import Rollout
from muster_operator.resources import placement, template
from muster_operator.resources.ownership import is_owned


@dataclass(frozen=True)
class JobState:
    """One job at one moment: the input of every phase (:mod:`muster_operator.plan.phase_table`). Its spec has passed
    admission."""

    job: IPUJob
    snapshot: Snapshot
    setup: JobSetup

    @property
    def goes_on(self) -> bool:
        """The job was accepted, and is neither being deleted nor finished."""
        meta = self.job.metadata
        has_begun = FINALIZER in meta.finalizers and not meta.deletion_timestamp
        return has_begun and not is_finished(self.job.status)

    @cached_property
    def pods(self) -> Mapping[str, JobPod]:
        """By name. A pod with our labels that another object owns is ignored (behaviours 26, 27)."""
        return {name: pod for name, pod in self.snapshot.pods.items() if is_owned(pod.metadata, self.job)}

    @cached_property
    def entries(self) -> Mapping[str, PartitionEntry]:
        """By partition name."""
        uid = self.job.metadata.uid
        return {name: entry for name, entry in self.snapshot.entries.items() if entry.job == uid}

    @cached_property
    def instances(self) -> int:
        return instances(self.job.spec)

    @cached_property
    def workers_each(self) -> int:
        return workers_per_instance(self.job.spec)

    @cached_property
    def with_launcher(self) -> bool:
        return has_launcher(self.job.spec)

    @property
    def attempt(self) -> int:
        return self.job.status.attempt

    def attempt_of(self, instance: int) -> int:
        return attempts.attempt_of(self.job.status, instance)

    @cached_property
    def restart_delays_s(self) -> Mapping[int, float]:
        """Seconds until wanted instances that restart alone begin again, by instance."""
        now, limit_s = self.snapshot.now, self.setup.restart_delay_limit_s
        left_s = {each: timers.instance_delay_s(self.job, each, now, limit_s) for each in self.active_instances}
        return {instance: delay_s for instance, delay_s in left_s.items() if delay_s}

    def partition(self, instance: int) -> str:
        return names.partition(self.job.metadata.namespace, self.job.metadata.name, instance)

    def entry(self, instance: int) -> PartitionEntry | None:
        return self.entries.get(self.partition(instance))

    def workers_of(self, instance: int) -> dict[int, str]:
        """Names by index."""
        first = instance * self.workers_each
        return {
            index: names.worker_pod(self.job.metadata.name, index) for index in range(first, first + self.workers_each)
        }

    @cached_property
    def launcher_name(self) -> str:
        return names.launcher_pod(self.job.metadata.name)

    @cached_property
    def digest(self) -> str:
        """Digest of the current workers' template."""
        return template.digest(self.job)

    def is_of_template(self, pod: JobPod) -> bool:
        """Whether the pod has the current template. Pods from before this label existed count as of the template at the
        time when they were first seen: an upgrade of the operator replaces no pod, but the next edit does."""
        return pod.metadata.labels.get(names.TEMPLATE, self.job.status.adopted_template or self.digest) == self.digest

    @cached_property
    def may_mix(self) -> bool:
        """Whether instances of an earlier attempt may run beside those of this one: during the rollout of a
        template."""
        return not self.with_launcher and not has_condition(self.job.status, RESTARTING)

    @cached_property
    def rollout(self) -> Rollout:
        if not self.may_mix or rolling.recreates_pods(self.job):
            return Rollout()
        limits = rolling.rollout_limits(self.job)
        slots = [self._slot(instance) for instance in range(self.instances)]
        extras = [
            self._slot(instance)
            for instance in range(self.instances, self.instances + limits.surge)
            if any(names.SURGE in pod.metadata.labels for pod in self.present_workers(instance))
        ]
        return rolling.plan_rollout(slots, extras, limits)

    def _slot(self, instance: int) -> rolling.InstanceState:
        there = self.present_workers(instance)
        return rolling.observe_instance(
            instance, there, self.workers_each, current=all(self.is_of_template(pod) for pod in there)
        )

    @cached_property
    def held_instances(self) -> frozenset[int]:
        """Instances that hold nothing for a while; see :mod:`muster_operator.plan.gang_hold`."""
        given_back = self.job.status.given_back
        return frozenset(given_back.instances if given_back is not None and given_back.until else ())

    @cached_property
    def active_instances(self) -> tuple[int, ...]:
        """Instances that should have pods now: the wanted ones, then the surge instances."""
        found = (*range(self.instances), *sorted(self.rollout.extras))
        return tuple(instance for instance in found if instance not in self.held_instances)

    def present_workers(self, instance: int) -> list[JobPod]:
        """The workers of the instance that are not being deleted."""
        return [self.pods[name] for name in self.workers_of(instance).values() if self.is_present(name)]

    @cached_property
    def ready_instances(self) -> tuple[int, ...]:
        """Instances with a usable partition: of this attempt, or of the attempt of their pods."""
        return tuple(
            instance
            for instance in self.active_instances
            if (entry := self.entry(instance)) is not None
            and entry.state == "active"
            and (entry.attempt == self.attempt_of(instance) or instance in self.former_attempt_instances)
            and self.fits(entry)
        )

    @cached_property
    def ready_set(self) -> frozenset[int]:
        return frozenset(self.ready_instances)

    @cached_property
    def former_attempt_instances(self) -> frozenset[int]:
        """Instances that still have pods and a partition of an earlier attempt."""
        found = {pod.metadata.labels.get(names.INSTANCE) for pod in self.pods.values() if self._is_current(pod)}
        return frozenset(entry.instance for entry in self.entries.values() if str(entry.instance) in found)

    def _is_current(self, pod: JobPod) -> bool:
        labels = pod.metadata.labels
        return labels.get(names.ATTEMPT) == self._former_attempts.get(labels.get(names.INSTANCE, ""), "none")

    @cached_property
    def _former_attempts(self) -> Mapping[str, str]:
        return attempts.former_attempts(self.job.status, self.entries.values()) if self.may_mix else {}

    def is_mixed(self, instance: int) -> bool:
        """Pods of another template still exist: no pod of the current template may run beside them."""
        return any(
            (pod := self.pods.get(name)) is not None and not self.is_of_template(pod)
            for name in self.workers_of(instance).values()
        )

    def fits(self, entry: PartitionEntry) -> bool:
        return (entry.size, entry.gcds) == (ipus_per_instance(self.job.spec), self.workers_each)

    @cached_property
    def misfit_partitions(self) -> frozenset[str]:
        """Partitions with outdated size or GCDs: the job was suspended, edited and resumed while no operator ran (or no
        webhook saw the edit). The job starts anew, because the mapping of workers to partitions may have changed."""
        return frozenset(
            name for name, entry in self.entries.items() if entry.state != "deleting" and not self.fits(entry)
        )

    @cached_property
    def unready_instances(self) -> tuple[int, ...]:
        """Wanted instances without a usable partition."""
        ready = set(self.ready_instances)
        return tuple(instance for instance in range(self.instances) if instance not in ready)

    @cached_property
    def instances_to_take(self) -> tuple[int, ...]:
        """Instances that need a partition request. Partitions that are being created or removed are waited for
        (behaviours 29, 31)."""
        ready = self.former_attempt_instances.union(self.ready_instances)
        return tuple(
            instance
            for instance in self.active_instances
            if instance not in ready and instance not in self.restart_delays_s
            if (entry := self.entry(instance)) is None
            or (
                entry.state != "deleting"
                and entry.attempt < self.attempt_of(instance)
                and not any(name in self.pods for name in self.workers_of(instance).values())  # the pods must go first
            )
        )

    @cached_property
    def complete_instances(self) -> tuple[int, ...]:
        """Ready instances whose pods exist: the number in CURRENT."""
        return tuple(
            instance
            for instance in self.ready_instances
            if instance < self.instances
            if all(self.is_present(name) for name in self.workers_of(instance).values())
        )

    def is_present(self, name: str) -> bool:
        """The pod is of this attempt and is not being deleted."""
        pod = self.pods.get(name)
        return pod is not None and not pod.metadata.deletion_timestamp and self.is_of_current_attempt(pod)

    def is_of_current_attempt(self, pod: JobPod) -> bool:
        return pod.metadata.labels.get(names.ATTEMPT) == str(self._attempt_now(pod)) or self._is_current(pod)

    def is_leaving(self, pod: JobPod) -> bool:
        """The pod is being deleted, and its instance starts anew without it, because it is replaced or moves."""
        return bool(pod.metadata.deletion_timestamp) and self._is_current(pod)

    def _attempt_now(self, pod: JobPod) -> int:
        """Attempt of the job, or of the pod's instance."""
        instance = _number(pod.metadata.labels.get(names.INSTANCE, ""))
        return self.attempt if instance is None else self.attempt_of(instance)

    @cached_property
    def old_pods(self) -> tuple[JobPod, ...]:
        """Pods of earlier attempts of the job. Pods of instances that are replaced or move alone count only as
        superfluous."""
        if self.may_mix:
            return ()
        return tuple(
            pod
            for pod in self.pods.values()
            if not self.is_of_current_attempt(pod)
            and ((made := _number(pod.metadata.labels.get(names.ATTEMPT, ""))) is None or made < self._attempt_now(pod))
        )

    @cached_property
    def pods_lost_with_node(self) -> tuple[JobPod, ...]:
        """Pods that are lost with their nodes (behaviour 57)."""
        wanted = self.desired_workers | ({self.launcher_name} if self.with_launcher else set())
        return tuple(
            pod
            for name, pod in sorted(self.pods.items())
            if self.snapshot.bad_nodes
            and name in wanted
            and self.is_of_current_attempt(pod)
            and lost_pods.is_lost(pod, self.snapshot)
            if not self.is_leaving(pod)
        )

    @cached_property
    def desired_workers(self) -> frozenset[str]:
        return frozenset(name for instance in self.active_instances for name in self.workers_of(instance).values())

    @cached_property
    def workers(self) -> tuple[JobPod, ...]:
        """Wanted workers that are not being deleted, in the order of their indices."""
        return tuple(
            self.pods[name]
            for instance in range(self.instances)
            for name in self.workers_of(instance).values()
            if self.is_present(name)
        )

    @cached_property
    def launcher(self) -> JobPod | None:
        return self.pods[self.launcher_name] if self.is_present(self.launcher_name) else None

    @cached_property
    def superfluous_pods(self) -> tuple[JobPod, ...]:
        """Pods of instances that are no longer wanted, are replaced or hold nothing now, and pods of an earlier attempt
        or shape; the highest index first."""
        wanted = self.desired_workers | (
            {self.launcher_name} if self.with_launcher and not self.held_instances else set()
        )
        replaced = {str(instance) for instance in self.rollout.replace}
        found = [
            pod
            for name, pod in self.pods.items()
            if name not in wanted
            or self.misfit_partitions
            or not self.is_of_current_attempt(pod)
            or self.is_leaving(pod)
            or (
                pod.metadata.deletion_timestamp and pod_outcome.has_ended(pod)
            )  # a kubelet that does not respond removes no pod
            or pod.metadata.labels.get(names.INSTANCE) in replaced
            or self._is_scaled_away(pod)
        ]
        return tuple(sorted(found, key=lambda pod: (_index(pod.metadata.name), pod.metadata.name), reverse=True))

    def _is_scaled_away(self, pod: JobPod) -> bool:
        """The pod's index is beyond the wanted instances, even where a surge instance runs now."""
        behind = _index(pod.metadata.name) >= self.instances * self.workers_each
        return behind and names.SURGE not in pod.metadata.labels

    @cached_property
    def surplus_partitions(self) -> tuple[str, ...]:
        """Partitions of instances that are no longer wanted and have no pods left (behaviour 48)."""
        wanted = {self.partition(instance) for instance in self.active_instances} - self.misfit_partitions
        busy = {pod.metadata.labels.get(names.INSTANCE) for pod in self.pods.values()}
        return tuple(
            name
            for name, entry in sorted(self.entries.items())
            if name not in wanted and entry.state != "deleting" and str(entry.instance) not in busy
        )

    def conflict(self, instance: int) -> str:
        """Why the template's node selector keeps this instance off its partition; empty if it does not."""
        entry = self.entry(instance)
        if entry is None:
            return ""
        return placement.conflict(template.pod_spec(self.job).get("nodeSelector") or {}, entry.selector)

    @cached_property
    def is_running(self) -> bool:
        """All pods exist, and the launcher's own command runs (so every worker was ready) or, without a launcher, at
        least one worker does. An instance that was just added need not run yet, as observed with the original."""
        missing = set(range(self.instances)).difference(self.complete_instances)
        if not self.instances or (missing - self.restarting_instances and not self.is_rolling_out):
            return False
        if self.with_launcher:
            return self.launcher is not None and self.launcher.status.phase == "Running"
        return any(pod.status.phase != "Pending" for pod in self.workers)

    @property
    def is_rolling_out(self) -> bool:
        """All missing instances are being replaced, within the limits of the rollout."""
        missing = set(range(self.instances)).difference(self.complete_instances)
        least = max(1, self.instances - rolling.rollout_limits(self.job).unavailable)
        return self.rollout.available >= least and missing <= self.replaced_instances

    @cached_property
    def replaced_instances(self) -> frozenset[int]:
        """Instances of a running job that are between the pods of two templates: the old pods are going, or the
        partition is being reset."""
        return frozenset() if rolling.recreates_pods(self.job) else self._changing_instances

    @cached_property
    def restarting_instances(self) -> frozenset[int]:
        """Instances of a running job that restart alone: their pods are going, they wait, or their partition is being
        reset."""
        status = self.job.status
        return frozenset(each for each in self._changing_instances if attempts.has_restarted(status, each))

    @cached_property
    def _changing_instances(self) -> frozenset[int]:
        if not has_condition(self.job.status, RUNNING) or not self.may_mix:
            return frozenset()
        found = []
        for instance in range(self.instances):
            entry = self.entry(instance)
            if entry is None or self.present_workers(instance):
                continue
            resets = entry.attempt < self.attempt_of(instance) or (entry.state == "creating" and entry.reset)
            if entry.state != "deleting" and (resets or self.is_mixed(instance)):
                found.append(instance)
        return frozenset(found)

    @cached_property
    def end(self) -> AttemptEnd | None:
        """The end of this attempt; None: it continues. With a launcher, its end is the job's, and so is a failure of a
        worker, because mpirun may hang on it. Without one, every instance must have ended: one of its workers failed,
        or all have ended. A pod that is being deleted does not count, because it was stopped, unless it is lost."""
        failed = (*pod_outcome.failed_pods(self.workers), *self.pods_lost_with_node)
        if self.with_launcher:
            if self.launcher is not None and pod_outcome.has_ended(self.launcher):
                if self.launcher.status.phase == pod_outcome.SUCCEEDED:
                    return AttemptEnd(True)
                return AttemptEnd(False, self._with_cause(self.launcher, failed), (self.launcher, *failed))
            return self._end_with(failed) if failed else None
        if not self.instances or not all(self._is_over(instance) for instance in range(self.instances)):
            return None
        return self._end_with(failed) if failed else AttemptEnd(True)

    def _is_over(self, instance: int) -> bool:
        return self.is_lost(instance) or self.end_of(instance) is not None

    def is_lost(self, instance: int) -> bool:
        """A pod of the instance is lost with its node."""
        return any(pod.metadata.labels.get(names.INSTANCE) == str(instance) for pod in self.pods_lost_with_node)

    def end_of(self, instance: int) -> AttemptEnd | None:
        """How an instance of a job without launcher has ended; None: it continues."""
        found = self.present_workers(instance)
        if failed := tuple(pod_outcome.failed_pods(found)):
            return self._end_with(failed)
        ended = len(found) == self.workers_each and all(pod_outcome.has_ended(pod) for pod in found)
        return AttemptEnd(True) if ended else None

    def _end_with(self, failed: tuple[JobPod, ...]) -> AttemptEnd:
        return AttemptEnd(False, lost_pods.describe_end(failed[0], self.snapshot), failed)

    def _with_cause(self, launcher: JobPod, failed: Sequence[JobPod]) -> str:
        """A launcher mostly fails because a worker did."""
        failure = pod_outcome.describe_failure(launcher)
        return f"{failure}; {lost_pods.describe_end(failed[0], self.snapshot)}" if failed else failure


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _index(name: str) -> int:
    """-1 for the launcher, which goes last."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else -1
