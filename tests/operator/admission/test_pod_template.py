"""What is surely wrong with a pod template, each with its path."""

from typing import Any

import pytest
from tests.operator.admission.specs import CONTAINER, template

from muster_operator.admission.errors import show_value
from muster_operator.admission.pod_template import launcher_errors, template_errors

AT = "spec.workers.template.spec"
MAIN = f"{AT}.containers[0]"


def found(given: object) -> list[str]:
    return [str(error) for error in template_errors(given)]


def with_spec(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [CONTAINER]} | fields}


@pytest.mark.parametrize(
    "given",
    [
        template(),
        template(
            command=["a", "b"], args=["c"], env=[{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"x": 1}}]
        ),
        with_spec(volumes=None, nodeSelector=None, initContainers=[]),
        {"metadata": {"labels": {"a": "b"}, "annotations": None}} | template(),
        with_spec(
            volumes=[{"name": "data", "emptyDir": {}}],
            containers=[
                CONTAINER | {"volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]}
            ],
        ),
    ],
)
def test_nothing_is_said_of_what_may_be_right(given: object) -> None:
    assert found(given) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "spec.workers.template: null: "),
        ("pod", 'spec.workers.template: "pod"'),
        ({}, f"{AT}.containers: missing"),
        ({"spec": None}, f"{AT}.containers: missing"),
        (with_spec(containers={}), f"{AT}.containers: {show_value({})}: "),
        (with_spec(containers=["main"]), f'{AT}.containers[0]: "main": '),
        (template(name="Main"), f'{MAIN}.name: "Main"'),
        (template(name="a" * 64), f"{MAIN}.name: "),
        (template(name=None), f"{MAIN}.name: null"),
        (template(image=""), f'{MAIN}.image: ""'),
        (template(image=" main:1"), f'{MAIN}.image: " main:1"'),
        (template(image=None), f"{MAIN}.image: null"),
        (template(command="mpirun"), f'{MAIN}.command: "mpirun"'),
        (template(args=["-np", 1]), f"{MAIN}.args[1]: 1: "),
        (template(env={"A": "1"}), f"{MAIN}.env: {show_value({'A': '1'})}: "),
        (template(env=[{"name": "A", "value": 1}]), f"{MAIN}.env[0].value: 1: "),
        (template(env=[{"name": "A", "value": True}]), f"{MAIN}.env[0].value: true"),
        (template(env=[{"name": "A=B"}]), f'{MAIN}.env[0].name: "A=B"'),
        (template(env=[{"name": "A", "value": "1", "valueFrom": {}}]), f"{MAIN}.env[0].valueFrom: "),
        (template(volumeMounts=[{"name": "data", "mountPath": "/a"}]), f'{MAIN}.volumeMounts[0].name: "data"'),
        (with_spec(containers=[CONTAINER, CONTAINER]), f'{AT}.containers[1].name: "main": '),
        (with_spec(initContainers=[CONTAINER]), f'{MAIN}.name: "main": '),
        (with_spec(volumes=[{"name": "a"}, {"name": "a"}]), f'{AT}.volumes[1].name: "a": '),
        (with_spec(volumes={"name": "a"}), f"{AT}.volumes: {show_value({'name': 'a'})}: "),
        (with_spec(nodeSelector={"pool": 1}), f"{AT}.nodeSelector[pool]: 1: "),
        ({"metadata": {"labels": {"a": True}}} | template(), "spec.workers.template.metadata.labels[a]: true"),
        ({"metadata": []} | template(), f"spec.workers.template.metadata: {show_value([])}"),
    ],
)
def test_what_is_surely_wrong_is_named(given: object, said: str) -> None:
    assert any(error.startswith(said) for error in found(given)), found(given)


def test_a_place_is_mounted_once() -> None:
    mounts = [{"name": "a", "mountPath": "/x"}, {"name": "b", "mountPath": "/x"}, {"name": "b", "mountPath": "a:b"}]
    volumes = [{"name": "a"}, {"name": "b"}]
    said = found(with_spec(volumes=volumes, containers=[CONTAINER | {"volumeMounts": mounts}]))
    assert [error.partition(": ")[0] for error in said] == [
        f"{MAIN}.volumeMounts[1].mountPath",
        f"{MAIN}.volumeMounts[2].mountPath",
    ]


@pytest.mark.parametrize("place", ["/etc/mpi", "/etc/mpi/", "/opt/kube"])
def test_what_the_launcher_has_of_its_own_is_no_place_for_the_main_containers_volumes(place: str) -> None:
    """No launcher could ever be made, and its workers would hold their partitions meanwhile."""
    mounted = CONTAINER | {"volumeMounts": [{"name": "data", "mountPath": place}]}
    plain = CONTAINER | {"name": "side"}
    said = f'[0].volumeMounts[0].mountPath: "{place}": '
    [error] = launcher_errors({"spec": {"containers": [mounted, plain]}})
    assert str(error).startswith(f"{AT}.containers{said}")
    assert not [*launcher_errors({"spec": {"containers": [plain, mounted]}})]
    marked = {"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "main"}}}
    [error] = launcher_errors(marked | {"spec": {"containers": [plain, mounted]}})
    assert error.path.startswith(f"{AT}.containers[1]")


@pytest.mark.parametrize("junk", [None, [], {}, {"spec": None}, {"spec": {"containers": [None, 3]}}, {"metadata": 3}])
def test_a_launchers_places_of_junk_are_nobodys_business_here(junk: object) -> None:
    assert not [*launcher_errors(junk)]
