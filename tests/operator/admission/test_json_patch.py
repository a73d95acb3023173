"""JSON patches: what they make of the one object is the other."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster_operator.admission.json_patch import make_patch

scalars = st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["", "a"]))
objects = st.dictionaries(
    st.sampled_from(["a", "b/c", "d~e", "~1"]),
    st.recursive(
        scalars, lambda below: st.one_of(st.lists(below, max_size=2), st.dictionaries(st.sampled_from("ab/~"), below))
    ),
)


def applied(operations: Any, to: dict[str, Any]) -> dict[str, Any]:
    whole = {"spec": copy.deepcopy(to)}
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at: dict[str, Any] = whole
        for key in way:
            at = at[key]
        assert (last in at) == (operation["op"] != "add")
        if operation["op"] == "remove":
            del at[last]
        else:
            at[last] = operation["value"]
    return whole["spec"]


@given(objects, objects)
def test_the_patch_makes_the_one_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert applied(make_patch(before, after, "/spec"), before) == after


@given(objects)
def test_of_equals_the_patch_is_empty(found: dict[str, Any]) -> None:
    assert make_patch(found, copy.deepcopy(found), "/spec") == ()


def test_one_and_true_are_told_apart() -> None:
    assert make_patch({"a": True}, {"a": 1}, "") == ({"op": "replace", "path": "/a", "value": 1},)
