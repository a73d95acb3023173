"""The answer to a request, and the next action for an entry: every row of what V-IPU may have, in tables."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from muster_operator.job.names import PARKED_PREFIX, POD_PREFIX
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest
from muster_operator.proxy.tracker.decisions import (
    PartitionAction,
    answer_request,
    create_entry,
    decide_action,
    describe_sickness,
    mark_deleting,
    release_entry,
    validate_request,
)
from muster_operator.proxy.tracker.entries import ASIDE_SUFFIX
from muster_operator.vipu.controller import Ipu, VipuPartition

NAME, PARK = "p-default-train-0", f"{PARKED_PREFIX}0000000a"
WISH = PartitionRequest(job="uid", namespace="default", name="train", instance=1, attempt=2, size=4, gcds=2)
ENTRY = create_entry(WISH, "v0:1", "rack=r0")
GOOD, BAD = Ipu("10.1.1.1", 0), Ipu("10.1.1.2", 0)
FOUND = VipuPartition(NAME, size=4, gcds=2, state="ACTIVE", ipus=(GOOD,))
LONGEST = 253 + len(POD_PREFIX)


def entry(**fields: Any) -> PartitionEntry:
    return msgspec.structs.replace(ENTRY, **fields)


def why(answer: object) -> str:
    """Of a refusal; empty for anything else."""
    return answer.why if isinstance(answer, PartitionRefusal) else ""


# requests


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (NAME, {}),
        ("p-" + "x" * 238, {}),
        (NAME, {"size": 1, "gcds": 1}),
        (NAME, {"size": 64}),
        (NAME, {"gcds": 4}),
        (NAME, {"size": 1024, "gcds": 1024}),
        (NAME, {"attempt": 0, "instance": 0}),
        (NAME, {"job": "u"}),
        (NAME, {"name": "x" * LONGEST}),
    ],
)
def test_a_request_is_accepted_up_to_its_limits(name: str, fields: dict[str, Any]) -> None:
    assert validate_request(name, msgspec.structs.replace(WISH, **fields), 1024) is None


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("train", {}),
        ("p-" + "x" * 239, {}),
        (f"p-train{ASIDE_SUFFIX}", {}),
        (PARK, {}),
        (NAME, {"size": 3}),
        (NAME, {"size": 2048}),
        (NAME, {"gcds": 0}),
        (NAME, {"gcds": 3}),
        (NAME, {"size": 2048, "gcds": 2048}),
        (NAME, {"attempt": -1}),
        (NAME, {"instance": -1}),
        (NAME, {"job": ""}),
        (NAME, {"namespace": "a\nb"}),
        (NAME, {"name": "x" * (LONGEST + 1)}),
    ],
)
def test_a_request_beyond_them_is_invalid(name: str, fields: dict[str, Any]) -> None:
    assert why(validate_request(name, msgspec.structs.replace(WISH, **fields), 1024)) == "Invalid"


def test_more_gcds_than_v_ipu_has_are_invalid_however_many_ipus_there_are() -> None:
    assert why(validate_request(NAME, msgspec.structs.replace(WISH, size=2048, gcds=2048), 4096)) == "Invalid"


def test_the_message_quotes_the_first_eighty_characters_of_a_bad_name() -> None:
    refusal = validate_request("x" * 200, WISH, 64)
    assert refusal is not None
    assert ("x" * 80 in refusal.message, "x" * 81 in refusal.message) == (True, False)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"job": "other", "attempt": 0}, "NotOurs"),
        ({"attempt": 3}, "OldAttempt"),
        ({"attempt": 3, "state": "deleting"}, "OldAttempt"),
        ({"state": "deleting"}, "Refused"),
        ({"attempt": 1, "state": "deleting"}, "Refused"),
        ({"size": 8}, "Invalid"),
        ({"gcds": 4}, "Invalid"),
    ],
)
def test_a_request_is_refused_by_what_is_there(fields: dict[str, Any], reason: str) -> None:
    assert why(answer_request(NAME, WISH, entry(**fields))) == reason


def test_the_same_attempt_changes_nothing_and_a_higher_one_resets() -> None:
    assert answer_request(NAME, WISH, None) is None
    there = entry(state="active")
    assert answer_request(NAME, WISH, there) is there
    earlier = entry(attempt=1, size=8, gcds=1, state="active", message="lost once")
    assert answer_request(NAME, WISH, earlier) == entry(state="creating", reset=True)


@pytest.mark.parametrize("message", ["", "V-IPU does not answer"])
def test_a_refusal_says_why_the_partition_is_still_there(message: str) -> None:
    refusal = answer_request(NAME, WISH, entry(state="deleting", message=message))
    assert isinstance(refusal, PartitionRefusal)
    assert refusal.message.endswith(message or "not gone yet")


def test_only_its_job_releases_a_partition_and_only_once() -> None:
    active = entry(state="active", reset=True, message="lost once")
    assert release_entry(NAME, "uid", None) is None
    assert why(release_entry(NAME, "other", active)) == "NotOurs"
    gone = release_entry(NAME, "uid", active)
    assert gone == entry(state="deleting") == mark_deleting(active)
    assert release_entry(NAME, "uid", entry(state="deleting")) == entry(state="deleting")


# actions


@pytest.mark.parametrize(
    ("had", "found", "is_fresh", "action"),
    [
        # on its way out
        ({"state": "deleting"}, None, False, "DROP"),
        ({"state": "deleting"}, {}, False, "REMOVE"),
        ({"state": "deleting"}, {"state": "ERROR"}, False, "REMOVE"),
        ({"state": "deleting"}, {"state": "REMOVING"}, False, "WAIT"),
        ({"state": "deleting", "controller": ""}, {}, False, "DROP"),
        # settled
        ({"state": "active"}, {}, False, "DONE"),
        ({"state": "active"}, {"state": "ERROR", "ipus": (BAD,)}, False, "DONE"),
        ({"state": "active"}, None, False, "REMAKE"),
        # being created
        ({}, None, False, "CREATE"),
        ({}, {"state": "REMOVING"}, True, "WAIT"),
        ({}, {"state": "ERROR"}, True, "REMOVE"),
        ({}, {"size": 8}, True, "REMOVE"),
        ({}, {"gcds": 1}, True, "REMOVE"),
        ({}, {"ipus": (GOOD, BAD)}, True, "PARK"),
        ({}, {"state": "CREATING", "ipus": (BAD,)}, True, "PARK"),
        ({}, {"state": "CREATING"}, True, "WAIT"),
        ({}, {}, True, "ACTIVATE"),
        ({}, {}, False, "ACTIVATE"),
        ({"reset": True}, {}, False, "RESET"),
        ({"reset": True}, {}, True, "ACTIVATE"),
    ],
)
def test_the_next_action_for_the_partition_of_a_job(
    had: dict[str, Any], found: dict[str, Any] | None, is_fresh: bool, action: str
) -> None:
    seen = None if found is None else replace(FOUND, **found)
    assert decide_action(NAME, entry(**had), seen, {BAD}, is_fresh=is_fresh) is PartitionAction[action]


@pytest.mark.parametrize(
    ("state", "ipus", "action"),
    [
        ("creating", None, "DROP"),
        ("active", None, "DROP"),
        ("creating", (GOOD,), "RELEASE"),
        ("active", (GOOD,), "RELEASE"),
        ("creating", (), "ACTIVATE"),
        ("creating", (GOOD, BAD), "ACTIVATE"),
        ("active", (GOOD, BAD), "SHRINK"),
        ("active", (BAD,), "DONE"),
        ("active", (), "DONE"),
        ("deleting", (BAD,), "REMOVE"),
    ],
)
def test_the_next_action_for_a_parked_partition(state: Any, ipus: tuple[Ipu, ...] | None, action: str) -> None:
    seen = None if ipus is None else replace(FOUND, ipus=ipus)
    assert decide_action(PARK, entry(state=state), seen, {BAD}, is_fresh=False) is PartitionAction[action]


@pytest.mark.parametrize(
    ("had", "found", "is_fresh", "says"),
    [
        ({}, None, True, []),
        ({"state": "deleting"}, {"state": "ERROR", "message": "broken link"}, True, []),
        ({}, {"state": "ERROR", "message": "broken link"}, False, ["broken link"]),
        ({}, {"size": 8, "gcds": 1}, True, ["8 IPUs", "1 GCDs", "4 in 2"]),
        ({}, {"size": 8}, False, []),
        ({"reset": True}, {"size": 8}, True, []),
    ],
)
def test_what_is_wrong_with_a_partition_is_said(
    had: dict[str, Any], found: dict[str, Any] | None, is_fresh: bool, says: list[str]
) -> None:
    seen = None if found is None else replace(FOUND, **found)
    said = describe_sickness(entry(**had), seen, is_fresh=is_fresh)
    assert (bool(said), [part for part in says if part not in said]) == (bool(says), [])
