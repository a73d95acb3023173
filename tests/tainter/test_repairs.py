"""Repairs: one attempt at a time, counted, escalated, given up; nothing twice, nothing forgotten, whoever dies when."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.tainter.repair_world import Died, World, unreachable

from muster_kube.errors import ApiError
from muster_kube.times import rfc3339_whole
from muster_tainter.memory import ANNOTATION, Attempt
from muster_tainter.policy import Policy
from muster_tainter.policyfile import PolicyError, load_policy, parse_policy
from muster_tainter.repairing import Repairer
from muster_tainter.repairs import FORGET_S, GAVE_UP_LABEL, Stage, is_active

RULES = """
rules: [{name: all, match: {class: [reset, reboot, replace, contact]}, action: taint}]
pools:
"""
JOB = "job: {template: {spec: {template: {spec: {nodeName: '${node}', containers: [{name: c, args: ['${device}']}]}}}}}"
POLICY = parse_policy(f"""{RULES}
  - name: all
    selector: {{}}
    repair:
      atOnce: 1
      reset: {{{JOB}, attempts: 2, wait: 10m, escalate: reboot}}
      reboot: {{{JOB}, attempts: 1, wait: 20m}}
""")
LABEL = "muster.dev/repair"


def with_repair(text: str) -> Policy:
    return parse_policy(f"{RULES}  - name: all\n    selector: {{}}\n    repair: {text}")


def one_node(*classes: str) -> World:
    world = World()
    world.add("n1")
    for fault_class in classes:
        world.open_fault("n1", fault_class)
    return world


def go_on(world: World, policy: Policy = POLICY, leader: Repairer | None = None, rounds: int = 6) -> Repairer:
    """Looks until nothing changes any more."""

    async def run() -> Repairer:
        leading = leader or world.leader(policy)
        if leader is None:
            await leading.begin()
        for _ in range(rounds):
            world.catch_up()
            leading.look_at_all()
            leading._poll_at = 0.0
            await leading.look()
        return leading

    return asyncio.run(run())


def attempt(world: World, fault_class: str = "reset", name: str = "n1") -> tuple[int, str]:
    known = world.memory(name).attempts[fault_class]
    return known.n, known.stage


def reasons(world: World) -> list[str]:
    return [notice.reason for _, notice in world.told]


def test_a_tainted_empty_node_is_repaired_by_a_job_of_its_own() -> None:
    world = one_node("reset")
    go_on(world)
    [path] = world.made
    body = world.objects[path]
    assert path.startswith("/apis/batch/v1/namespaces/muster/jobs/muster-reset-")
    assert (body["apiVersion"], body["kind"]) == ("batch/v1", "Job")
    pod = body["spec"]["template"]
    assert (pod["spec"]["nodeName"], pod["spec"]["containers"][0]["args"]) == ("n1", ["0000:3b:00.0"])
    assert (pod["metadata"]["labels"], body["metadata"]["labels"]) == ({LABEL: "reset"}, {LABEL: "reset"})
    assert body["spec"]["ttlSecondsAfterFinished"] == 86_400
    assert body["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}]
    assert (attempt(world), world.nodes["n1"].metadata.labels) == ((1, "running"), {LABEL: "reset"})
    assert reasons(world) == ["RepairBegun"]


def test_nothing_begins_while_pods_are_left() -> None:
    world = one_node("reset")
    world.busy.add("n1")
    leader = go_on(world)
    assert (world.made, world.memory("n1").attempts) == ([], {})
    world.busy.clear()
    go_on(world, leader=leader)
    assert len(world.made) == 1


def test_nothing_begins_while_it_is_paused_and_what_runs_may_end() -> None:
    world = one_node("reset")
    world.withheld = "paused by ada"
    leader = go_on(world)
    assert world.made == []
    world.withheld = ""
    go_on(world, leader=leader)
    world.withheld = "paused by ada"
    world.now += 601
    go_on(world, leader=leader)
    assert (len(world.made), attempt(world)) == (1, (1, "failed"))


def test_what_was_begun_before_a_pause_is_made_after_it() -> None:
    world = one_node("reset")
    leader = go_on(world, rounds=1)
    assert attempt(world) == (1, "begun")
    world.withheld = "paused by ada"
    go_on(world, leader=leader)
    assert world.made == []
    world.withheld = ""
    go_on(world, leader=leader)
    assert (len(world.made), attempt(world)) == (1, (1, "running"))


def test_nothing_is_repaired_without_a_taint_of_ours() -> None:
    world = one_node()
    world.open_fault("n1")
    world.remember("n1", world.memory("n1"), tainted=False)
    go_on(world)
    assert world.made == []


def test_what_closes_the_faults_ends_the_attempt_and_its_job() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.close_faults("n1")
    go_on(world, leader=leader)
    assert (attempt(world), world.nodes["n1"].metadata.labels) == ((1, "done"), {})
    assert world.objects == {}  # it would reset a GPU that jobs have again
    assert reasons(world) == ["RepairBegun", "RepairEnded"]


def test_a_job_that_has_ended_is_left_for_its_log() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.end_jobs("Complete")
    go_on(world, leader=leader)
    assert attempt(world) == (1, "running")  # its end proves nothing
    world.close_faults("n1")
    go_on(world, leader=leader)
    assert (attempt(world), list(world.objects)) == ((1, "done"), world.made)


def test_attempts_are_counted_escalated_and_given_up_with_a_label_that_says_so() -> None:
    world = one_node("reset")
    leader = go_on(world)
    for _ in range(4):
        world.now += 1201
        go_on(world, leader=leader)
    kinds = [path.rpartition("/")[2].split("-")[1] for path in world.made]
    assert (kinds, len(set(world.made))) == (["reset", "reset", "reboot"], 3)
    assert (attempt(world), attempt(world, "reboot")) == ((2, "failed"), (1, "gave-up"))
    assert world.nodes["n1"].metadata.labels == {LABEL: GAVE_UP_LABEL}
    assert world.unfinished() == set()
    assert reasons(world).count("RepairGaveUp") == 1
    assert "tried reset 2 times, reboot 1 times" in world.told[-1][1].message


def test_a_failed_job_is_not_waited_for() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.end_jobs("Failed")
    go_on(world, leader=leader)
    assert (attempt(world), len(world.made)) == ((2, "running"), 2)


def test_a_job_that_its_own_reboot_has_killed_is_waited_for() -> None:
    world = one_node("reboot")
    leader = go_on(world)
    world.end_jobs("Failed")
    go_on(world, leader=leader)
    assert attempt(world, "reboot") == (1, "running")


def test_a_node_that_was_given_up_is_told_no_more_once_its_faults_are_over() -> None:
    world = one_node("reboot")
    leader = go_on(world)
    world.now += 1201
    go_on(world, leader=leader)
    assert world.nodes["n1"].metadata.labels == {LABEL: GAVE_UP_LABEL}
    world.close_faults("n1", "proof")
    go_on(world, leader=leader)
    assert (attempt(world, "reboot"), world.nodes["n1"].metadata.labels) == ((1, "done"), {})


def test_what_comes_back_within_a_week_counts_on_and_later_from_one() -> None:
    world = one_node("reset")
    leader = go_on(world)
    world.close_faults("n1")
    go_on(world, leader=leader)
    world.now += FORGET_S - 3600
    world.open_fault("n1")
    go_on(world, leader=leader)
    assert attempt(world) == (2, "running")
    world.close_faults("n1")
    go_on(world, leader=leader)
    world.now += FORGET_S
    world.open_fault("n1")
    go_on(world, leader=leader)
    assert attempt(world) == (1, "running")


def test_of_a_fault_that_stays_open_no_attempt_is_forgotten() -> None:
    world = one_node("reset")
    world.withheld = "paused by ada"
    world.remember(
        "n1",
        msgspec.structs.replace(
            world.memory("n1"), attempts={"reset": Attempt(n=1, at=rfc3339_whole(world.now), stage=Stage.FAILED)}
        ),
    )
    world.now += FORGET_S + 86_400
    world.withheld = ""
    go_on(world)
    assert attempt(world) == (2, "running")


def test_a_persons_word_that_it_is_well_starts_the_count_anew() -> None:
    world = one_node("reboot")
    leader = go_on(world)
    world.now += 1201
    go_on(world, leader=leader)
    world.close_faults("n1", "person")
    go_on(world, leader=leader)
    assert world.memory("n1").attempts == {}
    world.open_fault("n1", "reboot")
    go_on(world, leader=leader)
    assert attempt(world, "reboot") == (1, "running")


def test_the_heaviest_class_is_repaired_first_and_one_at_a_time() -> None:
    world = one_node("reset", "reboot")
    leader = go_on(world)
    assert ([*world.memory("n1").attempts], len(world.made)) == (["reboot"], 1)
    world.now += 1201
    go_on(world, leader=leader)
    assert len(world.under_repair()) <= 1
    assert world.nodes["n1"].metadata.labels == {LABEL: GAVE_UP_LABEL}  # a reset would not help where a reboot did not


def test_what_opens_during_an_attempt_is_not_what_it_was_for() -> None:
    world = one_node("reset")
    leader = go_on(world)
    memory = world.memory("n1")
    world.now += 5
    world.open_fault("n1", component="gpu/0000:5e:00.0")
    later = world.memory("n1").open[1]
    world.remember("n1", msgspec.structs.replace(world.memory("n1"), open=(later,), closed=memory.closed))
    go_on(world, leader=leader)
    assert (attempt(world), len(world.made)) == ((2, "running"), 2)


@pytest.mark.parametrize("fault", [{"rest": 3}, {"over": "2027-01-15T08:00:00Z", "how": "driver"}])
def test_what_counts_the_rest_or_is_only_held_is_not_repaired(fault: dict[str, Any]) -> None:
    world = one_node()
    world.open_fault("n1", **fault)
    go_on(world)
    assert world.made == []


def test_an_annotation_asks_for_a_repair_in_the_same_write_that_counts_it() -> None:
    asks = with_repair("{reboot: {annotate: {example.com/reboot: 'please-${attempt}'}, wait: 10m, attempts: 2}}")
    world = one_node("reboot")
    leader = go_on(world, asks)
    assert world.nodes["n1"].metadata.annotations["example.com/reboot"] == "please-1"
    assert attempt(world, "reboot") == (1, "running")
    world.now += 601
    go_on(world, asks, leader)
    assert world.nodes["n1"].metadata.annotations["example.com/reboot"] == "please-2"
    world.close_faults("n1", "boot")
    go_on(world, asks, leader)
    assert set(world.nodes["n1"].metadata.annotations) == {ANNOTATION}


def test_an_object_of_any_kind_is_made_and_deleted_again() -> None:
    remedy = "{apiVersion: example.com/v1, kind: Remedy, metadata: {name: '${node}', namespace: ops}, spec: {n: 1}}"
    asks = with_repair(f"{{reboot: {{create: {{manifest: {remedy}}}, wait: 10m, attempts: 2}}}}")
    world = one_node("reboot")
    leader = go_on(world, asks)
    path = "/apis/example.com/v1/namespaces/ops/remedies/n1"
    assert list(world.objects) == [path]
    first = world.objects[path]["metadata"]["annotations"]["muster.dev/attempt"]
    world.now += 601
    go_on(world, asks, leader)
    assert world.objects[path]["metadata"]["annotations"]["muster.dev/attempt"] != first
    world.close_faults("n1", "boot")
    go_on(world, asks, leader)
    assert world.objects == {}


def test_an_object_of_somebody_else_is_neither_taken_nor_deleted() -> None:
    remedy = "{apiVersion: example.com/v1, kind: Remedy, metadata: {name: '${node}'}}"
    asks = with_repair(f"{{reboot: {{create: {{manifest: {remedy}}}, wait: 10m, attempts: 1}}}}")
    world = one_node("reboot")
    path = "/apis/example.com/v1/namespaces/muster/remedies/n1"
    world.objects[path] = {"metadata": {"name": "n1", "uid": "theirs"}}
    leader = go_on(world, asks)
    assert (attempt(world, "reboot"), "RepairNotMade" in reasons(world)) == ((1, "begun"), True)
    world.now += 601
    go_on(world, asks, leader)
    assert (list(world.objects), attempt(world, "reboot")) == ([path], (1, "gave-up"))


def test_an_annotation_that_names_others_objects_deletes_none() -> None:
    """A Node's kubelet may write it."""
    world = one_node("reset")
    path = "/apis/batch/v1/namespaces/muster/jobs/payroll"
    world.objects[path] = {"metadata": {"name": "payroll", "uid": "theirs"}}
    for ref in (path, "/api/v1/namespaces/kube-system/../../nodes/n2", "/api/v1/nodes?x=y"):
        begun = Attempt(n=1, at=rfc3339_whole(world.now - 86_400), stage=Stage.RUNNING, ref=ref)
        world.remember("n1", msgspec.structs.replace(world.memory("n1"), attempts={"reset": begun}))
        go_on(world)
        assert path in world.objects


def test_no_value_of_a_fault_becomes_part_of_a_command() -> None:
    for component in ("gpu/$(reboot)", "gpu/a b", "gpu/`x`", "gpu/a;b", 'gpu/"', "gpu/a\nb", "-rf"):
        world = one_node()
        world.open_fault("n1", component=component)
        go_on(world)
        assert (world.made, world.memory("n1").attempts) == ([], {}), component
        assert set(reasons(world)) == {"RepairNotPossible"}


def test_values_are_not_templates_themselves() -> None:
    world = one_node()
    world.open_fault("n1", component="gpu/x")
    asks = with_repair(f"{{reset: {{{JOB.replace('device', 'label:a/b')}}}}}")
    world.nodes["n1"] = msgspec.structs.replace(
        world.nodes["n1"], metadata=msgspec.structs.replace(world.nodes["n1"].metadata, labels={"a/b": "node"})
    )
    go_on(world, asks)
    [path] = world.made
    assert world.objects[path]["spec"]["template"]["spec"]["containers"][0]["args"] == ["node"]


def test_at_most_so_many_nodes_of_a_pool_at_once() -> None:
    world = World()
    for number in range(10):
        world.add(f"n{number}")
        world.open_fault(f"n{number}")
    leader = go_on(world)
    assert len(world.under_repair()) == 1
    share = with_repair(f"{{atOnce: 25%, reset: {{{JOB}}}}}")
    go_on(world, share)
    assert len(world.under_repair()) == 3
    del leader


def test_what_is_taken_off_by_hand_is_not_repaired_behind_ones_back() -> None:
    world = one_node("reset")
    leader = go_on(world)
    meta = world.nodes["n1"].metadata
    world.nodes["n1"] = msgspec.structs.replace(
        world.nodes["n1"],
        metadata=msgspec.structs.replace(
            meta, labels={"muster.dev/managed": "false"}, annotations={}, resource_version="999"
        ),
    )
    go_on(world, leader=leader)
    assert (world.objects, world.under_repair()) == ({}, [])


def test_a_policy_that_repairs_no_more_ends_what_is_under_way() -> None:
    world = one_node("reset")
    go_on(world)
    go_on(world, parse_policy(f"{RULES}  - {{name: all, selector: {{}}}}"))
    assert (world.objects, attempt(world), world.nodes["n1"].metadata.labels) == ({}, (1, "done"), {})


@pytest.mark.parametrize("call", ["before create", "after create"])
def test_a_leader_that_dies_beside_the_making_is_followed_by_one_that_makes_it_once(call: str) -> None:
    world = one_node("reset")

    def die(at: str) -> None:
        if at.startswith(call):
            raise Died

    world.fail = die
    with pytest.raises(Died):
        go_on(world)
    assert attempt(world) == (1, "begun")
    world.fail = lambda _: None
    go_on(world)
    assert (len(world.made), attempt(world)) == (1, (1, "running"))


BAD: list[tuple[str, str]] = [
    ("{reset: {}}", "pools[0].repair.reset: {}: nothing: expected exactly one of job, annotate and create"),
    ("{reset: {annotate: {a: b}, create: {manifest: {apiVersion: v1, kind: X}}}}", "annotate and create: expected"),
    ("{reset: {annotate: {'a b': c}}}", "pools[0].repair.reset.annotate"),
    ("{reset: {annotate: {muster.dev/faults: c}}}", "this one is the tainter's own"),
    ("{reset: {annotate: {a: '${nodes}'}}}", "${nodes}: expected ${node}, ${class}"),
    ("{reset: {annotate: {a: b}, escalate: reboot}}", 'reset.escalate: "reboot": expected none: no heavier class'),
    ("{reset: {annotate: {a: b}, escalate: reset}}", 'reset.escalate: "reset": expected'),
    ("{reset: {annotate: {a: b}, attempts: 0}}", "pools[0].repair.reset.attempts: 0"),
    ("{reset: {annotate: {a: b}, wait: 5}}", "pools[0].repair.reset.wait: 5: expected a time"),
    ("{reset: {job: {template: {}}}}", "pools[0].repair.reset.job.template: {}: spec: expected a mapping"),
    ("{reset: {job: {template: {kind: Pod}}}}", 'kind: "Pod": expected Job'),
    ("{reset: {job: {template: {metadata: {name: x}}}}}", "metadata.name: expected none"),
    ("{reset: {job: {template: {spec: {ttlSecondsAfterFinished: 5, template: {spec: {}}}}}}}", "expected at least 600"),
    ("{reset: {job: {template: {spec: {template: {spec: {a: 2026-01-01}}}}}}}", "pools[0].repair.reset.job.template"),
    ("{reset: {job: {file: x}}}", "pools[0].repair.reset.job"),
    ("{reset: {create: {manifest: {kind: X}}}}", "apiVersion: null: expected one, such as example.com/v1"),
    ("{reset: {create: {manifest: {apiVersion: ../../v1, kind: X}}}}", "expected one, such as example.com/v1"),
    ("{reset: {create: {manifest: {apiVersion: v1, kind: x/y}}}}", "expected one, such as Remediation"),
    ("{resett: {annotate: {a: b}}}", "pools[0].repair.resett: unknown key: expected atOnce, contact, reboot, replace"),
    ("{reset: {anotate: {a: b}}}", "pools[0].repair.reset.anotate: unknown key: expected annotate, attempts, create"),
    ("{atOnce: 200%, reset: {annotate: {a: b}}}", "pools[0].repair.atOnce"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_what_a_repair_may_not_say(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as told:
        with_repair(text)
    assert words in str(told.value)


def test_a_manifest_may_stand_in_a_file_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "reset.yaml").write_text("{spec: {template: {spec: {nodeName: '${node}'}}}}")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{RULES}  - {{name: all, selector: {{}}, repair: {{reset: {{job: {{file: reset.yaml}}}}}}}}")
    world = one_node("reset")
    go_on(world, load_policy(policy))
    [body] = world.objects.values()
    assert body["spec"]["template"]["spec"] == {"nodeName": "n1"}


@pytest.mark.parametrize(("job", "words"), [
    ("{file: other.yaml}", 'pools[0].repair.reset.job.file: "other.yaml": No such file'),
    ("{file: ../secret}", "expected the name of a file in the policy's own folder"),
    ("{file: /etc/passwd}", "expected the name of a file in the policy's own folder"),
    ("{file: bad.yaml}", 'pools[0].repair.reset.job.file: "bad.yaml": while'),
    ("{file: list.yaml}", "pools[0].repair.reset.job.template: []: expected a mapping"),
    ("{file: list.yaml, template: {}}", "pools[0].repair.reset.job: expected one of file and template"),
    ("{file: 3}", "pools[0].repair.reset.job.file: 3: expected"),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, job: str, words: str) -> None:
    (tmp_path / "bad.yaml").write_text("{a: [")
    (tmp_path / "list.yaml").write_text("[]")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{RULES}  - {{name: all, selector: {{}}, repair: {{reset: {{job: {job}}}}}}}")
    with pytest.raises(PolicyError) as told:
        load_policy(policy)
    assert words in str(told.value)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_policy(file: Path) -> None:
    assert load_policy(file).rules


def test_the_examples_of_repairs_are_there() -> None:
    assert {"repair-job", "kured", "medik8s", "cluster-api"} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("name", ["repair-job", "kured", "medik8s", "cluster-api"])
def test_what_the_examples_repair_is_made(name: str) -> None:
    policy = load_policy(EXAMPLES[0].parent / f"{name}.yaml")
    repaired = [
        (pool, fault_class)
        for pool in policy.pools
        for fault_class in ("reset", "reboot", "replace", "contact")
        if pool.repair is not None and pool.repair.of(fault_class) is not None
    ]
    assert repaired
    for pool, fault_class in repaired:
        world = World()
        labels = {**pool.selector.match_labels, "example.com/bmc": "10.9.8.7"}
        annotations = {"cluster.x-k8s.io/machine": "m-1", "cluster.x-k8s.io/cluster-namespace": "fleet"}
        world.add("n1", **labels)
        meta = msgspec.structs.replace(world.nodes["n1"].metadata, annotations=annotations)
        world.nodes["n1"] = msgspec.structs.replace(world.nodes["n1"], metadata=meta)
        world.open_fault("n1", fault_class)
        go_on(world, policy)
        assert attempt(world, fault_class) == (1, "running"), (world.told, fault_class)


names = st.sampled_from(["n0", "n1", "n2"])
AT_ONCE = 2
MACHINE_POLICY = parse_policy(f"""{RULES}
  - name: all
    selector: {{}}
    repair:
      atOnce: {AT_ONCE}
      reset: {{{JOB}, attempts: 2, wait: 10m, escalate: reboot}}
      reboot: {{{JOB}, attempts: 1, wait: 20m}}
""")


class Repairs(RuleBasedStateMachine):
    """Leaders die at any call, answers are lost, watches lag, clocks jump, people pause, faults come and go."""

    @initialize()
    def start(self) -> None:
        self.world = World()
        for number in range(3):
            self.world.add(f"n{number}")
        self.leader: Repairer | None = None
        self.calls = 0
        self.fail_at: dict[int, BaseException] = {}
        self.world.fail = self.count
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        self.runner.close()

    def count(self, _: str) -> None:
        self.calls += 1
        error = self.fail_at.pop(self.calls, None)
        if error is not None:
            raise error

    @rule(name=names, fault_class=st.sampled_from(["reset", "reboot"]))
    def a_fault_opens(self, name: str, fault_class: str) -> None:
        if len(self.world.memory(name).open) < 3:
            self.world.open_fault(name, fault_class)

    @rule(name=names, how=st.sampled_from(["driver", "proof", "person"]))
    def its_faults_close(self, name: str, how: str) -> None:
        self.world.close_faults(name, how)

    @rule(name=names)
    def a_job_comes_or_goes(self, name: str) -> None:
        self.world.busy ^= {name}

    @rule()
    def somebody_pauses_or_resumes(self) -> None:
        self.world.withheld = "" if self.world.withheld else "paused by ada"

    @rule(outcome=st.sampled_from(["Complete", "Failed"]))
    def jobs_end(self, outcome: str) -> None:
        self.world.end_jobs(outcome)

    @rule(seconds=st.sampled_from([1.0, 61.0, 601.0, 1201.0, 8 * 86_400.0, -3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def the_watch_catches_up(self) -> None:
        self.world.catch_up()

    @rule(at=st.integers(1, 6), dies=st.booleans())
    def something_is_going_to_fail(self, at: int, dies: bool) -> None:
        self.fail_at[self.calls + at] = Died() if dies else unreachable()

    @rule()
    def the_leader_is_another_one(self) -> None:
        self.leader = None

    @rule(rounds=st.integers(1, 3), sees=st.booleans())
    def the_leader_looks(self, rounds: int, sees: bool) -> None:
        paused, before = bool(self.world.withheld), set(self.world.under_repair())
        busy, made = set(self.world.busy), len(self.world.made)
        for _ in range(rounds):
            self.look(sees)
        begun = set(self.world.under_repair()) - before
        assert not (paused and begun), "nothing begins while it is paused"
        assert not (paused and len(self.world.made) > made)
        assert not begun & busy, "nobody repairs under a running job"
        for name in begun:
            assert self.world.nodes[name].spec.taints, "nothing begins without a taint"

    def look(self, sees: bool) -> None:
        async def once() -> None:
            if sees:
                self.world.catch_up()
            if self.leader is None:
                self.leader = self.world.leader(MACHINE_POLICY)
                await self.leader.begin()
            self.leader.look_at_all()
            await self.leader.look()

        try:
            self.runner.run(once())
        except Died:
            self.leader = None
        except ApiError:
            pass

    @invariant()
    def no_attempt_is_made_twice(self) -> None:
        assert len(set(self.world.made)) == len(self.world.made)

    @invariant()
    def no_more_nodes_at_once_than_the_pool_allows(self) -> None:
        assert len(self.world.under_repair()) <= AT_ONCE

    @invariant()
    def one_at_a_time_and_no_more_than_the_policy_says(self) -> None:
        for name in self.world.nodes:
            attempts = self.world.memory(name).attempts
            assert sum(map(is_active, attempts.values())) <= 1
            assert attempts.get("reset", Attempt(n=0)).n <= 2
            assert attempts.get("reboot", Attempt(n=0)).n <= 1

    @precondition(lambda self: not self.world.withheld)
    @rule()
    def nothing_is_forgotten(self) -> None:
        """Left in peace, what was begun is made, what is over is cleaned up, and whoever waits has a turn."""
        self.fail_at.clear()
        self.world.busy.clear()
        for _ in range(30):
            before = dict(self.world.nodes), set(self.world.objects)
            if self.leader is not None:
                self.leader._poll_at = 0.0
            self.look(True)
            if before == (self.world.nodes, set(self.world.objects)):
                break
        world = self.world
        refs = set()
        for name in world.under_repair():
            [attempt] = [each for each in world.memory(name).attempts.values() if is_active(each)]
            assert attempt.stage == Stage.RUNNING
            assert world.memory(name).open
            refs.add(attempt.ref)
        assert world.unfinished() <= refs, "no Job runs for nothing"
        for name in world.nodes:
            memory, label = world.memory(name), world.nodes[name].metadata.labels.get(LABEL)
            if not memory.open:
                assert label is None
        waiting = [n for n in world.nodes if world.memory(n).open and LABEL not in world.nodes[n].metadata.labels]
        assert not waiting or len(world.under_repair()) == AT_ONCE


TestRepairs = Repairs.TestCase
TestRepairs.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck), deadline=None
)
