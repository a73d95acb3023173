"""Specs of IPUJobs for tests: the least one, those of the sample files, and any that somebody could send."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

Spec = dict[str, Any]
SAMPLES = sorted((Path(__file__).parents[1] / "samples").glob("ipujob_*.yaml"))
CONTAINER = {"name": "main", "image": "main:1"}


def least(**fields: Any) -> Spec:
    """The least that is allowed, with ``fields`` over it; None takes one away."""
    made: Spec = {"jobInstances": 1, "ipusPerJobInstance": "4", "workers": {"template": template()}} | fields
    return copy.deepcopy({key: value for key, value in made.items() if value is not None})


def template(**container: Any) -> Spec:
    return {"spec": {"containers": [CONTAINER | container]}}


def workers(replicas: object) -> Spec:
    return {"replicas": replicas, "template": template()}


def samples(files: Iterable[Path] = SAMPLES) -> list[tuple[str, Spec]]:
    """The IPUJob of each file, by the file's name."""
    found = []
    for file in files:
        jobs = [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "IPUJob"]
        found += [(file.name, each) for each in jobs]
    return found


texts = st.sampled_from(["1", "2", "4", "8", "64", "128", "3", "0", "-2", "1.5", "abc", "", "01", "9" * 40])
numbers = st.one_of(st.integers(-1, 9), st.sampled_from([2**31, 10**30]))
junk = st.one_of(st.none(), st.booleans(), numbers, texts, st.just([]), st.just({}), st.just([{"name": "x"}]))
restart_policies = st.fixed_dictionaries(
    {"type": st.sampled_from(["Always", "OnFailure", "Never", "ExitCode"])},
    optional={"backOffLimit": st.integers(0, 5), "exitCodes": st.sampled_from(["1,3,128-255", "a", "300"])},
)
worker_groups = st.fixed_dictionaries(
    {"template": st.just(template())}, optional={"replicas": st.one_of(numbers, junk)}
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "jobInstances": st.one_of(numbers, junk),
        "ipusPerJobInstance": st.one_of(texts, junk),
        "workersPerJobInstance": st.one_of(texts, junk),
        "workerPerJobInstance": st.one_of(texts, junk),
        "modelReplicas": st.one_of(texts, junk),
        "ipusPerModelReplica": st.one_of(texts, junk),
        "cleanPodPolicy": st.one_of(st.sampled_from(["None", "All", "Workers"]), junk),
        "restartPolicy": st.one_of(restart_policies, junk),
        "workers": st.one_of(worker_groups, junk),
        "launcher": st.one_of(st.just({"command": ["mpirun"]}), junk),
        "interactive": st.one_of(st.just({"ttl": 60}), junk),
        "suspend": st.one_of(st.booleans(), junk),
        "aFieldOfAYearToCome": junk,
    },
)


@st.composite
def _valid(draw: st.DrawFn) -> Spec:
    ipus = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
    group = draw(st.sampled_from([size for size in (1, 2, 4, 8, 16, 32, 64) if ipus % size == 0]))
    spec: Spec = {"workers": {"template": template()}}
    if draw(st.booleans()):
        spec |= {"modelReplicas": str(ipus), "ipusPerModelReplica": "1"}
    else:
        spec |= {"ipusPerJobInstance": str(ipus), "jobInstances": draw(st.integers(0, 70))}
    said = draw(st.sets(st.sampled_from(["text", "older", "replicas"]), min_size=1 if group > 1 else 0))
    if "text" in said:
        spec["workersPerJobInstance"] = str(group)
    if "older" in said:
        spec["workerPerJobInstance"] = str(group)
    if "replicas" in said:
        spec["workers"]["replicas"] = group
    if draw(st.booleans()):
        spec["restartPolicy"] = {"type": draw(st.sampled_from(["Always", "OnFailure", "Never", "ExitCode"]))}
    mode = draw(st.sampled_from(["launcher", "interactive", ""]))
    if mode:
        spec[mode] = {"launcher": {"command": ["mpirun"]}, "interactive": {"ttl": 60}}[mode]
    return spec


valid_specs = _valid()
