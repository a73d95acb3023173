"""What the configuration may say."""

from typing import Any

import pytest
from pydantic import ValidationError

from muster_checks.containerlog import CONTAINERLOG, ContainerlogParameters
from muster_checks.registry import load_registry, select_checks


def test_it_is_off_by_default() -> None:
    assert not CONTAINERLOG.enabled
    every = load_registry(())
    assert {check.name for check in select_checks(["all"], every)} == every.keys() - {"containerlog", "ncclras"}
    assert select_checks(["containerlog"], every) == [CONTAINERLOG]


def test_only_the_configuration_sets_its_parameters() -> None:
    assert ContainerlogParameters.configured == set(ContainerlogParameters.model_fields)


def test_lists_may_be_written_with_commas() -> None:
    given = ContainerlogParameters.model_validate({"known": "cuda,nccl", "namespaces": "ml,team-*", "pods": "all"})
    assert given.known == ("cuda", "nccl")
    assert given.namespaces == ("ml", "team-*")


def test_step_times_are_off_by_default_and_enough_alone() -> None:
    assert not ContainerlogParameters().step_times
    assert ContainerlogParameters.model_validate({"known": [], "step_times": True}).step_times


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"known": ["tpu"]}, "known"),
        ({"known": []}, ""),
        ({"step_pattern": r"(?P<rank>\d+) (?P<step>\d+) (?P<seconds>\d+)"}, ""),
        ({"step_times": True, "step_pattern": r"(?P<rank>\d+) (?P<step>\d+)"}, "step_pattern"),
        ({"step_times": True, "step_pattern": r"(?P<rank>\d+)(?P<step>\d+)(?P<seconds>\d+)(?P<pod>x)"}, "step_pattern"),
        ({"step_times": True, "step_pattern": r"(?P<rank>\d*)(?P<step>\d*)(?P<seconds>\d*)"}, "step_pattern"),
        ({"step_times": True, "step_pattern": "("}, "step_pattern"),
        ({"pods": "all"}, ""),
        ({"pods": "some"}, "pods"),
        ({"namespaces": ["ML"]}, "namespaces"),
        ({"namespaces": ["a/b"]}, "namespaces"),
        ({"files": 65}, "files"),
        ({"files": 0}, "files"),
        ({"cpu_share": 0}, "cpu_share"),
        ({"cpu_share": "nan"}, "cpu_share"),
        ({"patterns": [{"name": "a b", "pattern": "x"}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": "("}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": ".*"}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": "x", "class": "restart"}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": "x", "verdict": "UNKNOWN"}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": "x", "other": 1}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": "x{1000}{3}"}]}, "patterns"),
        ({"patterns": [{"name": "A", "pattern": "x"}, {"name": "A", "pattern": "y"}]}, ""),
        ({"patterns": [{"name": f"A{n}", "pattern": f"[a-z]{{{900 + n}}}x"} for n in range(40)]}, ""),
        ({"patterns": [{"name": f"A{n}", "pattern": "x"} for n in range(65)]}, "patterns"),
    ],
)
def test_a_bad_value_is_named(values: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ContainerlogParameters.model_validate(values)
    assert {str(error["loc"][0]) if error["loc"] else "" for error in caught.value.errors()} == {place}
