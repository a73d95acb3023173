"""Which of several writes without an answer was made."""

import pytest

from muster_kube.controller.unanswered_writes import LIMIT, UnansweredWrites


@pytest.fixture
def writes() -> UnansweredWrites[str]:
    return UnansweredWrites()


def made(writes: UnansweredWrites[str], version: str, shown: str) -> str | None:
    return writes.take_made("n1", version, lambda write: write == shown)


def test_a_write_is_found_once(writes: UnansweredWrites[str]) -> None:
    writes.note("n1", "5", "a")
    assert made(writes, "6", "a") == "a"
    assert made(writes, "6", "a") is None


def test_nothing_is_known_at_the_same_version_or_an_older_one(writes: UnansweredWrites[str]) -> None:
    writes.note("n1", "9", "a")
    assert made(writes, "9", "a") is None
    assert made(writes, "8", "a") is None
    assert made(writes, "10", "a") == "a"


def test_what_a_later_version_does_not_show_was_not_made(writes: UnansweredWrites[str]) -> None:
    writes.note("n1", "5", "a")
    writes.note("n1", "7", "b")
    assert made(writes, "7", "of others") is None
    assert made(writes, "8", "a") is None
    writes.note("n1", "8", "c")
    assert made(writes, "9", "c") == "c"


def test_of_many_the_last_are_remembered(writes: UnansweredWrites[str]) -> None:
    for number in range(LIMIT + 3):
        writes.note("n1", "5", str(number))
    assert made(writes, "6", str(LIMIT + 2)) == str(LIMIT + 2)


def test_of_many_the_first_are_forgotten(writes: UnansweredWrites[str]) -> None:
    for number in range(LIMIT + 3):
        writes.note("n1", "5", str(number))
    assert made(writes, "6", "0") is None


def test_the_same_write_again_takes_the_place_of_no_other(writes: UnansweredWrites[str]) -> None:
    writes.note("n1", "5", "first")
    for _ in range(LIMIT + 3):
        writes.note("n1", "5", "again")
    assert made(writes, "6", "first") == "first"
