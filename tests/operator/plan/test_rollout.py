"""A changed template is rolled out within its bounds, whatever else happens meanwhile (behaviour 51)."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.operator.plan.job_factory import make_job, template
from tests.operator.plan.simulated_cluster import OperatorDied, SimulatedCluster
from tests.wording.facts import missing_facts

from muster_operator.job import names, status
from muster_operator.job.types import INSTANCES_LIMIT, IPUJob, Strategy, Workers, instances
from muster_operator.plan.phase_table import plan
from muster_operator.plan.rollout import InstanceState, RolloutLimits, plan_rollout, rollout_limits
from muster_operator.resources.template import digest


def strategy(surge: int | str, unavailable: int | str) -> Strategy:
    return msgspec.convert(
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}, Strategy
    )


def service(count: int, surge: int | str, unavailable: int | str, *, workers: int = 1, **spec: Any) -> IPUJob:
    job = make_job(launcher=False, instances=count, workers=workers, finalizers=(), **spec)
    changed = msgspec.structs.replace(job.spec.workers, strategy=strategy(surge, unavailable))
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, workers=changed))


def of(job: IPUJob, version: int, kind: Strategy | None = None) -> Workers:
    """The workers with the template changed to a version; kind: and with that strategy."""
    pods = template(terminationGracePeriodSeconds=version)
    return msgspec.structs.replace(job.spec.workers, template=pods, strategy=kind or job.spec.workers.strategy)


class ServiceCluster(SimulatedCluster):
    """At most ``broken``'s pods fail as soon as they run; the rest work."""

    broken: str = ""

    def step(self, uid: str) -> None:
        with contextlib.suppress(OperatorDied):
            self.turn(uid)
        self.settle_partitions()
        self.end_deletions()
        self.now += 5
        for key, pod in list(self.pods.items()):
            is_broken = bool(self.broken) and pod.metadata.labels[names.TEMPLATE] == self.broken
            self.set_phase(key, "Failed" if is_broken else "Running")

    def at_work(self) -> int:
        """Instances all of whose pods work: of jobs with one worker each."""
        return sum(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in self.pods.values())

    def until_done(self, uid: str, steps: int = 80) -> list[tuple[int, int]]:
        """(at work, in all) after each step, until every pod is of the present template and nothing more happens."""
        seen = []
        for _ in range(steps):
            before = self._moment(uid)
            self.step(uid)
            seen.append((self.at_work(), len(self.pods)))
            if before == self._moment(uid):
                return seen
        raise AssertionError("it does not come to rest")

    def _moment(self, uid: str) -> tuple[object, ...]:
        """Pods and partitions, too: they go without a write of the operator's."""
        return self.writes, self.jobs[uid].status, dict(self.pods), dict(self.tracker)


def begin(job: IPUJob, **world: Any) -> tuple[ServiceCluster, str]:
    cluster = ServiceCluster(room=64, **world)
    cluster.add(job)
    cluster.until_done(job.metadata.uid)
    return cluster, job.metadata.uid


def observe_pods(cluster: SimulatedCluster) -> tuple[object, ...]:
    [job] = cluster.jobs.values()
    said = job.status
    return (
        sorted((name, pod.status.phase, dict(pod.metadata.labels)) for (_, name), pod in cluster.pods.items()),
        sorted((name, entry.state, entry.attempt) for name, entry in cluster.tracker.items()),
        (said.launcher_status, said.last_message, said.current_replicas, said.desired_replicas, said.restart_count),
        cluster.room,
    )


def test_51_shares_are_of_instances_and_round_as_a_deployments() -> None:
    assert rollout_limits(make_job(launcher=False, instances=4)) == RolloutLimits(1, 1)
    assert rollout_limits(make_job(launcher=False, instances=1)) == RolloutLimits(1, 0)
    assert rollout_limits(service(5, "25%", "25%")) == RolloutLimits(2, 1)
    assert rollout_limits(service(3, 0, "25%")) == RolloutLimits(0, 1), "neither is none: else nothing could ever go"
    assert rollout_limits(service(3, 0, 9)) == RolloutLimits(0, 3)
    assert rollout_limits(service(INSTANCES_LIMIT, 0, "1%")) == RolloutLimits(0, 40)


@pytest.mark.parametrize(("surge", "unavailable"), [(0, 1), (1, 0), (1, 1), (2, 0), (0, 4), ("50%", "25%")])
def test_51_never_more_are_missing_or_more_than_the_bounds_say(surge: int | str, unavailable: int | str) -> None:
    cluster, uid = begin(service(4, surge, unavailable))
    limits = rollout_limits(cluster.jobs[uid])
    cluster.edit(uid, workers=of(cluster.jobs[uid], 2))
    seen = cluster.until_done(uid)
    assert min(at_work for at_work, _ in seen) >= 4 - limits.unavailable
    assert max(whole for _, whole in seen) <= 4 + limits.surge
    job = cluster.jobs[uid]
    assert {pod.metadata.labels[names.TEMPLATE] for pod in cluster.pods.values()} == {digest(job)}
    assert (len(cluster.pods), len(cluster.tracker), job.status.launcher_status) == (4, 4, "Running")
    assert job.status.last_message == status.RECONCILED
    assert set(cluster.resets.values()) == {1}, "each partition is reset once"


def test_51_the_job_runs_throughout_and_says_how_far_it_is() -> None:
    cluster, uid = begin(service(4, 0, 1))
    cluster.edit(uid, workers=of(cluster.jobs[uid], 2))
    said = set()
    for _ in range(40):
        cluster.step(uid)
        assert status.has_condition(cluster.jobs[uid].status, status.RUNNING)
        assert cluster.jobs[uid].status.current_replicas >= 3
        said.add(cluster.jobs[uid].status.last_message)
    assert any("3 of 4" in each for each in said)
    assert cluster.jobs[uid].status.restart_count == 0


def test_51_recreate_ends_all_before_anything_new_begins() -> None:
    job = service(3, 1, 0, workers=2)
    recreate = msgspec.convert({"type": "Recreate"}, Strategy)
    cluster, uid = begin(job)
    cluster.edit(uid, workers=of(job, 2, recreate))
    old = {pod.metadata.uid for pod in cluster.pods.values()}
    while any(pod.metadata.uid in old for pod in cluster.pods.values()):
        cluster.step(uid)
        left = [pod for pod in cluster.pods.values() if pod.metadata.uid in old]
        assert not left or len(left) == len(cluster.pods)
    cluster.until_done(uid)
    assert len(cluster.pods) == 6
    found = cluster.jobs[uid].status
    assert (found.restart_count, found.attempt, found.launcher_status) == (0, 1, "Running")


def test_51_a_template_that_fails_stops_at_its_bounds_says_so_and_a_second_edit_mends_it() -> None:
    cluster, uid = begin(service(4, 0, 1))
    cluster.edit(uid, workers=of(cluster.jobs[uid], 2))
    cluster.broken = digest(cluster.jobs[uid])
    seen = cluster.until_done(uid)
    assert min(at_work for at_work, _ in seen) == 3
    found = cluster.jobs[uid].status
    assert found.launcher_status == "Running"
    assert not missing_facts(found.last_message, "0 of 4", "train-worker-3")
    cluster.edit(uid, workers=of(cluster.jobs[uid], 3))
    assert min(at_work for at_work, _ in cluster.until_done(uid)) >= 3
    assert {pod.metadata.labels[names.TEMPLATE] for pod in cluster.pods.values()} == {digest(cluster.jobs[uid])}
    assert len(cluster.pods) == 4


def test_51_without_room_for_a_surge_instance_nothing_is_deleted_and_the_message_says_why() -> None:
    job = service(2, 1, 0)
    cluster = ServiceCluster(room=2)
    cluster.add(job)
    uid = job.metadata.uid
    cluster.until_done(uid)
    cluster.edit(uid, workers=of(job, 2))
    assert min(at_work for at_work, _ in cluster.until_done(uid)) == 2
    assert not missing_facts(cluster.jobs[uid].status.last_message, "0 of 2", "room")
    cluster.room = 1
    cluster.until_done(uid)
    assert {pod.metadata.labels[names.TEMPLATE] for pod in cluster.pods.values()} == {digest(cluster.jobs[uid])}
    assert (len(cluster.pods), cluster.room) == (2, 1)


def test_a_template_edited_back_replaces_only_what_had_changed() -> None:
    job = service(4, 0, 1)
    cluster, uid = begin(job)
    before = {name: pod.metadata.uid for (_, name), pod in cluster.pods.items()}
    cluster.edit(uid, workers=of(job, 2))
    while digest(cluster.jobs[uid]) not in {pod.metadata.labels[names.TEMPLATE] for pod in cluster.pods.values()}:
        cluster.step(uid)
    cluster.edit(uid, workers=job.spec.workers)
    cluster.until_done(uid)
    after = {name: pod.metadata.uid for (_, name), pod in cluster.pods.items()}
    assert [name for name in sorted(after) if after[name] != before[name]] == ["train-worker-3"]


def unlabelled(cluster: ServiceCluster) -> None:
    """As an operator left them that knew no such label."""
    for key, pod in cluster.pods.items():
        labels = {name: text for name, text in pod.metadata.labels.items() if name != names.TEMPLATE}
        cluster.pods[key] = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


@pytest.mark.parametrize("kind", [strategy(0, 1), strategy(1, 0), Strategy(type="Recreate")])
def test_pods_from_before_the_label_are_kept_by_an_upgrade_and_replaced_by_the_first_edit_after_it(
    kind: Strategy,
) -> None:
    job = service(3, 0, 1)
    cluster, uid = begin(job)
    cluster.edit(uid, workers=of(job, 1, kind))
    cluster.until_done(uid)
    unlabelled(cluster)
    before, written = dict(cluster.pods), cluster.writes
    cluster.turn(uid)
    cluster.turn(uid)
    assert (cluster.pods, cluster.writes - written) == (before, 1), "the upgrade costs one write"
    first = digest(cluster.jobs[uid])
    assert cluster.jobs[uid].status.adopted_template == first
    cluster.edit(uid, workers=of(job, 2, kind))
    cluster.until_done(uid)
    assert {pod.metadata.labels[names.TEMPLATE] for pod in cluster.pods.values()} == {digest(cluster.jobs[uid])}
    assert not {pod.metadata.uid for pod in cluster.pods.values()} & {pod.metadata.uid for pod in before.values()}
    assert (cluster.jobs[uid].status.adopted_template, set(cluster.resets.values())) == ("", {1})


def test_a_crd_that_does_not_know_the_adopted_template_yet_makes_no_write_that_changes_anything() -> None:
    job = service(2, 0, 1)
    cluster, uid = begin(job)
    unlabelled(cluster)
    decided = plan(cluster.jobs[uid], cluster.snapshot(cluster.jobs[uid], {}, {}), cluster.setup)
    assert decided.status is not None
    assert msgspec.structs.replace(decided.status, adopted_template="") == cluster.jobs[uid].status
    assert not status.is_written_first(cluster.jobs[uid].status, decided.status), "nothing waits for it"


def test_an_instance_that_has_succeeded_is_not_repeated() -> None:
    job = service(2, 0, 2)
    cluster, uid = begin(job)
    cluster.set_phase(("default", "train-worker-0"), "Succeeded")
    done = cluster.pods["default", "train-worker-0"].metadata.uid
    cluster.edit(uid, workers=of(job, 2))
    cluster.until_done(uid)
    assert cluster.pods["default", "train-worker-0"].metadata.uid == done
    assert cluster.pods["default", "train-worker-1"].metadata.labels[names.TEMPLATE] == digest(cluster.jobs[uid])


@pytest.mark.parametrize("launcher", [True, False])
def test_44_a_job_suspended_edited_and_resumed_unseen_gets_new_pods(launcher: bool) -> None:
    job = make_job(launcher=launcher, instances=2, finalizers=())
    cluster, uid = begin(job)
    cluster.edit(uid, workers=of(job, 2))
    cluster.until_done(uid)
    assert {pod.metadata.labels[names.TEMPLATE] for pod in cluster.pods.values()} == {digest(cluster.jobs[uid])}
    assert len(cluster.pods) == 2 + launcher
    assert cluster.jobs[uid].status.launcher_status == "Running"
    assert set(cluster.resets.values()) == {1}


@pytest.mark.parametrize(
    ("kind", "second"), [(strategy(1, 0), 3), (strategy(0, 1), 1), (msgspec.convert({"type": "Recreate"}, Strategy), 3)]
)
def test_51_59_a_rollout_ends_the_same_wherever_the_operator_ends(kind: Strategy, second: int) -> None:
    """With a scale and another edit in the middle of it: all points, not a sample."""

    def live(dies_at: int) -> tuple[object, int]:
        job = make_job(launcher=False, instances=2, workers=2, finalizers=())
        cluster, uid = begin(job)
        begun = cluster.writes
        cluster.dies_at = dies_at and begun + dies_at
        cluster.edit(uid, workers=of(job, 2, kind))
        for number in range(24):
            cluster.step(uid)
            if number == 2:
                cluster.edit(uid, job_instances=second)
            if number == 5:
                cluster.edit(uid, workers=of(job, 3, kind))
        return observe_pods(cluster)[0], cluster.writes - begun

    def without_attempts(found: object) -> object:
        """How many attempts it took depends on how far the first edit had come."""
        assert isinstance(found, list)
        return [(name, phase, labels | {names.ATTEMPT: "", names.SURGE: ""}) for name, phase, labels in found]

    expected, writes = live(0)
    assert writes > 15
    for point in range(1, writes + 1):
        found, _ = live(point)
        assert without_attempts(found) == without_attempts(expected), f"after write {point} of {writes}"


def test_unavailable_instances_are_replaced_first_then_the_highest() -> None:
    slots = [InstanceState(0, True, False), InstanceState(1, True, True), InstanceState(2, True, True)]
    assert plan_rollout(slots, [], RolloutLimits(0, 1)).replace == {0}
    assert plan_rollout(slots, [], RolloutLimits(0, 2)).replace == {0, 2}
    assert plan_rollout(slots, [], RolloutLimits(1, 0)).replace == set()
    assert plan_rollout([InstanceState(0, False, False), *slots[1:]], [], RolloutLimits(0, 1)).replace == set()


def slot(index: int, kind: str) -> InstanceState:
    """kind: old or new, and in capitals if it is available."""
    return InstanceState(index, old=kind.lower() == "o", available=kind.isupper())


@pytest.mark.parametrize(
    ("slots", "extras", "surge", "unavailable", "replace", "stand_in"),
    [
        ("OOO", "", 0, 2, {1, 2}, set()),
        ("OOO", "", 1, 0, set(), {3}),
        ("OOO", "N", 1, 0, {2}, {3}),
        ("OOO", "n", 1, 0, set(), {3}),
        ("OOO", "NN", 2, 1, {0, 1, 2}, {3, 4}),
        ("OON", "N", 1, 0, {1}, {3}),
        ("OOn", "N", 1, 0, set(), {3}),
        ("OOn", "", 0, 1, set(), set()),
        ("OOn", "", 0, 2, {1}, set()),
        ("oOO", "", 5, 1, {0}, {3, 4, 5}),
        ("NNN", "O", 1, 1, set(), set()),
        ("NNn", "N", 1, 0, set(), {3}),
        ("NNN", "", 3, 3, set(), set()),
        ("NNn", "", 1, 1, set(), set()),
    ],
)
def test_51_what_is_replaced_now_and_what_stands_in(
    slots: str, extras: str, surge: int, unavailable: int, replace: set[int], stand_in: set[int]
) -> None:
    wanted = [slot(index, kind) for index, kind in enumerate(slots)]
    more = [slot(index, kind) for index, kind in enumerate(extras, start=len(slots))]
    found = plan_rollout(wanted, more, RolloutLimits(surge, unavailable))
    assert (found.replace, found.extras) == (replace, stand_in)
    assert (found.done, found.available) == (slots.count("N"), sum(map(str.isupper, slots + extras)))
    assert (found.limits is None) is not (replace or stand_in or "O" in slots or "o" in slots)


class Rollouts(RuleBasedStateMachine):
    """Random edits, scales, failures and deaths; nothing is ever replaced beyond the bounds."""

    @initialize(count=st.integers(1, 4), surge=st.integers(0, 2), unavailable=st.integers(0, 2))
    def submit(self, count: int, surge: int, unavailable: int) -> None:
        self.cluster, self.uid = begin(service(count, surge, unavailable or int(not surge), workers=2))

    @property
    def job(self) -> IPUJob:
        return self.cluster.jobs[self.uid]

    @rule(version=st.integers(1, 3))
    def edit(self, version: int) -> None:
        self.cluster.edit(self.uid, workers=of(self.job, version))

    @rule(recreated=st.booleans(), surge=st.integers(0, 2))
    def choose_a_strategy(self, recreated: bool, surge: int) -> None:
        kind = msgspec.convert({"type": "Recreate"}, Strategy) if recreated else strategy(surge, 1)
        self.cluster.edit(self.uid, workers=msgspec.structs.replace(self.job.spec.workers, strategy=kind))

    @rule(count=st.integers(1, 4))
    def scale(self, count: int) -> None:
        self.cluster.edit(self.uid, job_instances=count)

    def _whole(self) -> int:
        """Instances at work among those that are wanted, and those that stand in: a scale takes the last ones, even if
        they alone work."""
        wanted, found = instances(self.job.spec), dict[str, int]()
        for pod in self.cluster.pods.values():
            number = pod.metadata.labels[names.INSTANCE]
            if int(number) >= wanted and names.SURGE not in pod.metadata.labels:
                continue
            if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp:
                found[number] = found.get(number, 0) + 1
        return sum(count == 2 for count in found.values())

    @rule(actions=st.integers(0, 5))
    def look_and_die(self, actions: int) -> None:
        self._turn(actions)

    @rule()
    def look(self) -> None:
        self._turn(None)

    def _turn(self, dies_after: int | None) -> None:
        before, wanted = self._whole(), instances(self.job.spec)
        with contextlib.suppress(OperatorDied):
            self.cluster.turn(self.uid, dies_after=dies_after)
        strategy_now = self.job.spec.workers.strategy
        assert isinstance(strategy_now, Strategy)
        if strategy_now.type == "RollingUpdate" and not status.has_condition(self.job.status, status.RESTARTING):
            least = min(before, wanted - rollout_limits(self.job).unavailable)
            assert self._whole() >= least, "more were taken down than may be missing"

    @rule()
    def others_get_on(self) -> None:
        self.cluster.settle_partitions()
        self.cluster.end_deletions()
        for key in list(self.cluster.pods):
            self.cluster.set_phase(key, "Running")

    @precondition(lambda self: self.cluster.pods)
    @rule(number=st.integers(0, 9))
    def a_pod_is_lost(self, number: int) -> None:
        found = sorted(self.cluster.pods)
        del self.cluster.pods[found[number % len(found)]]

    @invariant()
    def it_has_not_ended(self) -> None:
        if hasattr(self, "cluster"):
            assert not status.is_finished(self.job.status)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self.cluster.room = 64
        self.cluster.until_done(self.uid)
        count = instances(self.job.spec)
        assert {pod.metadata.labels[names.TEMPLATE] for pod in self.cluster.pods.values()} == {digest(self.job)}
        assert (len(self.cluster.pods), len(self.cluster.tracker)) == (2 * count, count)
        assert self.job.status.last_message == status.RECONCILED


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(
    max_examples=50,  # fewer have missed one instance too many taken down
    stateful_step_count=14,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
