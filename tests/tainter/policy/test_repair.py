"""What a policy may say of repairs, and what its examples repair."""

from pathlib import Path

import msgspec
import pytest
from tests.tainter.repair.fake_cluster import FakeCluster
from tests.tainter.repair.repair_rounds import RULES, attempt, go_on, one_node, with_repair

from muster_tainter.policy.file import PolicyError, load_policy

BAD: list[tuple[str, ...]] = [
    ("{reset: {}}", "pools[0].repair.reset: {}:", "job", "annotate", "create"),
    (
        "{reset: {annotate: {a: b}, create: {manifest: {apiVersion: v1, kind: X}}}}",
        "pools[0].repair.reset:",
        "job",
        "annotate",
        "create",
    ),
    ("{reset: {annotate: {'a b': c}}}", "pools[0].repair.reset.annotate"),
    ("{reset: {annotate: {muster.dev/faults: c}}}", "pools[0].repair.reset.annotate", "muster.dev/faults"),
    ("{reset: {annotate: {a: '${nodes}'}}}", "${nodes}", "${node}", "${class}"),
    ("{reset: {annotate: {a: b}, escalate: reboot}}", 'reset.escalate: "reboot":'),
    ("{reset: {annotate: {a: b}, escalate: reset}}", 'reset.escalate: "reset":'),
    ("{reset: {annotate: {a: b}, attempts: 0}}", "pools[0].repair.reset.attempts: 0"),
    ("{reset: {annotate: {a: b}, wait: 5}}", "pools[0].repair.reset.wait: 5:"),
    ("{reset: {job: {template: {}}}}", "pools[0].repair.reset.job.template: {}: spec:"),
    ("{reset: {job: {template: {kind: Pod}}}}", 'kind: "Pod":', "Job"),
    ("{reset: {job: {template: {metadata: {name: x}}}}}", "pools[0].repair.reset.job.template", "metadata.name"),
    (
        "{reset: {job: {template: {spec: {ttlSecondsAfterFinished: 5, template: {spec: {}}}}}}}",
        "ttlSecondsAfterFinished",
        "600",
    ),
    ("{reset: {job: {template: {spec: {template: {spec: {a: 2026-01-01}}}}}}}", "pools[0].repair.reset.job.template"),
    ("{reset: {job: {file: x}}}", "pools[0].repair.reset.job"),
    ("{reset: {create: {manifest: {kind: X}}}}", "apiVersion: null:"),
    ("{reset: {create: {manifest: {apiVersion: ../../v1, kind: X}}}}", 'apiVersion: "../../v1":'),
    ("{reset: {create: {manifest: {apiVersion: v1, kind: x/y}}}}", 'kind: "x/y":'),
    ("{resett: {annotate: {a: b}}}", "pools[0].repair.resett:", "atOnce", "contact", "reboot", "replace"),
    ("{reset: {anotate: {a: b}}}", "pools[0].repair.reset.anotate:", "annotate", "attempts", "create"),
    ("{atOnce: 200%, reset: {annotate: {a: b}}}", "pools[0].repair.atOnce"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_what_a_repair_may_not_say(case: tuple[str, ...]) -> None:
    text, *facts = case
    with pytest.raises(PolicyError) as told:
        with_repair(text)
    assert [fact for fact in facts if fact not in str(told.value)] == []


def test_a_manifest_may_stand_in_a_file_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "reset.yaml").write_text("{spec: {template: {spec: {nodeName: '${node}'}}}}")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{RULES}  - {{name: all, selector: {{}}, repair: {{reset: {{job: {{file: reset.yaml}}}}}}}}")
    world = one_node("reset")
    go_on(world, load_policy(policy))
    [body] = world.objects.values()
    assert body["spec"]["template"]["spec"] == {"nodeName": "n1"}


@pytest.mark.parametrize(("job", "place"), [
    ("{file: other.yaml}", 'pools[0].repair.reset.job.file: "other.yaml":'),
    ("{file: ../secret}", "pools[0].repair.reset.job.file: '../secret':"),
    ("{file: /etc/passwd}", "pools[0].repair.reset.job.file: '/etc/passwd':"),
    ("{file: bad.yaml}", 'pools[0].repair.reset.job.file: "bad.yaml":'),
    ("{file: list.yaml}", "pools[0].repair.reset.job.template: []:"),
    ("{file: list.yaml, template: {}}", "pools[0].repair.reset.job:"),
    ("{file: 3}", "pools[0].repair.reset.job.file: 3:"),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, job: str, place: str) -> None:
    (tmp_path / "bad.yaml").write_text("{a: [")
    (tmp_path / "list.yaml").write_text("[]")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{RULES}  - {{name: all, selector: {{}}, repair: {{reset: {{job: {job}}}}}}}")
    with pytest.raises(PolicyError) as told:
        load_policy(policy)
    assert place in str(told.value)


FILES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
EXAMPLES = [  # the others are for kubectl, Alertmanager and `muster simulate`
    file for file in FILES if "\nkind:" not in file.read_text() and file.stem not in ("alertmanager", "fleet")
]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_a_policy_is_one(file: Path) -> None:
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
        world = FakeCluster()
        labels = {**pool.selector.match_labels, "node-restriction.kubernetes.io/bmc": "10.9.8.7"}
        annotations = {"cluster.x-k8s.io/machine": "m-1", "cluster.x-k8s.io/cluster-namespace": "fleet"}
        world.add("n1", **labels)
        meta = msgspec.structs.replace(world.nodes["n1"].metadata, annotations=annotations)
        world.nodes["n1"] = msgspec.structs.replace(world.nodes["n1"], metadata=meta)
        world.open_fault("n1", fault_class)
        go_on(world, policy)
        assert attempt(world, fault_class) == (1, "running"), (world.told, fault_class)
