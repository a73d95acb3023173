"""Which of what there is belongs to a job, and what is missing: the facts that its plan is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from muster_operator import ending, losing, names
from muster_operator.ending import End
from muster_operator.ipujob import IPUJob, has_launcher, instances, ipus_per_instance, workers_per_instance
from muster_operator.partitions import Entry
from muster_operator.resources import placement, template
from muster_operator.resources.owned import is_owned
from muster_operator.seen import JobPod, Seen


def own_pods(job: IPUJob, seen: Seen) -> dict[str, JobPod]:
    """By name. A pod with our labels that another one owns is no business of ours (behaviours 26, 27)."""
    return {name: pod for name, pod in seen.pods.items() if is_owned(pod.metadata, job)}


def own_entries(job: IPUJob, seen: Seen) -> dict[str, Entry]:
    """By partition name."""
    return {name: entry for name, entry in seen.entries.items() if entry.job == job.metadata.uid}


@dataclass(frozen=True)
class Standing:
    """Of a job whose spec is as admission lets it through."""

    job: IPUJob
    seen: Seen

    @cached_property
    def pods(self) -> Mapping[str, JobPod]:
        return own_pods(self.job, self.seen)

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        return own_entries(self.job, self.seen)

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
        """An instance that has moved alone is ahead of the others: see :mod:`muster_operator.moving`."""
        return self.attempt + self.job.status.instance_moves.get(str(instance), 0)

    def partition(self, instance: int) -> str:
        return names.partition(self.job.metadata.namespace, self.job.metadata.name, instance)

    def entry(self, instance: int) -> Entry | None:
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
    def ready(self) -> tuple[int, ...]:
        """Instances with a partition of this attempt that can be used."""
        return tuple(
            instance
            for instance in range(self.instances)
            if (entry := self.entry(instance)) is not None
            and entry.state == "active"
            and entry.attempt == self.attempt_of(instance)
            and self.fits(entry)
        )

    def fits(self, entry: Entry) -> bool:
        return (entry.size, entry.gcds) == (ipus_per_instance(self.job.spec), self.workers_each)

    @cached_property
    def misfits(self) -> frozenset[str]:
        """Partitions of a former shape: the job was suspended, edited and resumed while nobody looked (or no webhook
        stood before the edit). It begins anew, as which worker has which partition may be another thing now."""
        return frozenset(
            name for name, entry in self.entries.items() if entry.state != "deleting" and not self.fits(entry)
        )

    @cached_property
    def unready(self) -> tuple[int, ...]:
        ready = set(self.ready)
        return tuple(instance for instance in range(self.instances) if instance not in ready)

    @cached_property
    def to_take(self) -> tuple[int, ...]:
        """Instances to ask a partition for. One that is being made or unmade is waited for (behaviours 29, 31)."""
        return tuple(
            instance
            for instance in self.unready
            if (entry := self.entry(instance)) is None
            or (
                entry.state != "deleting"
                and entry.attempt < self.attempt_of(instance)
                and not any(name in self.pods for name in self.workers_of(instance).values())  # they go first
            )
        )

    @cached_property
    def made(self) -> tuple[int, ...]:
        """Instances that are ready and whose pods were made: what CURRENT counts."""
        return tuple(
            instance
            for instance in self.ready
            if all(self.is_there(name) for name in self.workers_of(instance).values())
        )

    def is_there(self, name: str) -> bool:
        """In this attempt, and not on its way out."""
        pod = self.pods.get(name)
        return pod is not None and not pod.metadata.deletion_timestamp and self.is_of_now(pod)

    def is_of_now(self, pod: JobPod) -> bool:
        """Of this attempt of the job, or of its instance."""
        instance = _number(pod.metadata.labels.get(names.INSTANCE, ""))
        attempt = self.attempt if instance is None else self.attempt_of(instance)
        return pod.metadata.labels.get(names.ATTEMPT) == str(attempt)

    @cached_property
    def old(self) -> tuple[JobPod, ...]:
        """Of other attempts of the job than this one; what an instance that moves alone leaves is only superfluous."""
        return tuple(
            pod
            for pod in self.pods.values()
            if not self.is_of_now(pod)
            and ((made := _number(pod.metadata.labels.get(names.ATTEMPT, ""))) is None or made < self.attempt)
        )

    @cached_property
    def lost(self) -> tuple[JobPod, ...]:
        """With their nodes (behaviour 57)."""
        wanted = self.wanted_workers | ({self.launcher_name} if self.with_launcher else set())
        return tuple(
            pod
            for name, pod in sorted(self.pods.items())
            if self.seen.bad_nodes and name in wanted and self.is_of_now(pod) and losing.is_lost(pod, self.seen)
        )

    @cached_property
    def wanted_workers(self) -> frozenset[str]:
        return frozenset(name for instance in range(self.instances) for name in self.workers_of(instance).values())

    @cached_property
    def workers(self) -> tuple[JobPod, ...]:
        """Those that are wanted and not on their way out, in the order of their indices."""
        return tuple(
            self.pods[name]
            for instance in range(self.instances)
            for name in self.workers_of(instance).values()
            if self.is_there(name)
        )

    @cached_property
    def launcher(self) -> JobPod | None:
        return self.pods[self.launcher_name] if self.is_there(self.launcher_name) else None

    @cached_property
    def superfluous(self) -> tuple[JobPod, ...]:
        """Pods of instances that are no longer wanted, of an earlier attempt or shape; the highest index first."""
        wanted = self.wanted_workers | ({self.launcher_name} if self.with_launcher else set())
        found = [
            pod for name, pod in self.pods.items() if name not in wanted or self.misfits or not self.is_of_now(pod)
        ]
        return tuple(sorted(found, key=lambda pod: (_index(pod.metadata.name), pod.metadata.name), reverse=True))

    @cached_property
    def surplus(self) -> tuple[str, ...]:
        """Partitions of instances that are no longer wanted, once none of their pods is there (behaviour 48)."""
        wanted = {self.partition(instance) for instance in range(self.instances)} - self.misfits
        busy = {pod.metadata.labels.get(names.INSTANCE) for pod in self.pods.values()}
        return tuple(
            name
            for name, entry in sorted(self.entries.items())
            if name not in wanted and entry.state != "deleting" and str(entry.instance) not in busy
        )

    def conflict(self, instance: int) -> str:
        """Why the template's node selector keeps this instance from its partition; empty: it does not."""
        entry = self.entry(instance)
        if entry is None:
            return ""
        return placement.conflict(template.pod_spec(self.job).get("nodeSelector") or {}, entry.selector)

    @cached_property
    def is_running(self) -> bool:
        """Everything was made, and: the launcher's own command runs (so every worker was ready); without a launcher, a
        worker does. One that has just been added need not run yet, as seen with the original."""
        if not self.instances or len(self.made) < self.instances:
            return False
        if self.with_launcher:
            return self.launcher is not None and self.launcher.status.phase == "Running"
        return any(pod.status.phase != "Pending" for pod in self.workers)

    @cached_property
    def end(self) -> End | None:
        """Of this attempt; None: it goes on. With a launcher its end is the job's, and a worker that fails under it is
        as well, as mpirun may hang on it; without one, each instance is over: a worker of it failed, or all have ended.
        A pod that is being deleted says nothing: it was stopped; unless it is lost."""
        failed = (*ending.failed(self.workers), *self.lost)
        if self.with_launcher:
            if self.launcher is not None and ending.has_ended(self.launcher):
                if self.launcher.status.phase == ending.SUCCEEDED:
                    return End(True)
                return End(False, self._with_cause(self.launcher, failed), (self.launcher, *failed))
            return End(False, self._why(failed[0]), failed) if failed else None
        if not self.instances or not all(self._is_over(instance) for instance in range(self.instances)):
            return None
        return End(False, self._why(failed[0]), failed) if failed else End(True)

    def _is_over(self, instance: int) -> bool:
        found = [self.pods[name] for name in self.workers_of(instance).values() if self.is_there(name)]
        lost = any(pod.metadata.labels.get(names.INSTANCE) == str(instance) for pod in self.lost)
        return (
            lost
            or bool(ending.failed(found))
            or (len(found) == self.workers_each and all(ending.has_ended(pod) for pod in found))
        )

    def _with_cause(self, launcher: JobPod, failed: Sequence[JobPod]) -> str:
        """A launcher mostly fails because a worker did."""
        said = ending.why(launcher)
        return f"{said}; {self._why(failed[0])}" if failed else said

    def _why(self, pod: JobPod) -> str:
        return losing.why(pod, self.seen) if losing.is_lost(pod, self.seen) else ending.why(pod)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _index(name: str) -> int:
    """-1 for the launcher, which goes last."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else -1
