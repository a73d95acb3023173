"""What the names of partitions must hold: two jobs never share one, and a parked one is nobody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_operator.job import names

LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,12}[a-z0-9])?", fullmatch=True)
INSTANCE = st.integers(0, 4095)
JOB = st.tuples(LABEL, LABEL, INSTANCE)


@given(one=JOB, other=JOB)
def test_two_jobs_never_share_a_partition(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert (names.partition(*one) == names.partition(*other)) == (one == other)


@pytest.mark.parametrize(
    ("namespace", "job"), [("parked", "muster"), ("default", "muster-parked-deadbeef"), ("a-b", "muster-parked")]
)
def test_no_jobs_partition_is_taken_for_a_parked_one(namespace: str, job: str) -> None:
    assert not names.is_parked(names.partition(namespace, job, 0))
    assert not names.is_parked(names.partition(namespace, job, 4095))


def test_a_parked_one_is_known_by_its_name() -> None:
    assert names.is_parked(f"{names.PARKED_PREFIX}0123abcd")
