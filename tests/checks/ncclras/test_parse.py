"""Both formats of RAS say the same, and whatever else comes is an error."""

import json
import random

import pytest
from tests.checks.ncclras.ras_service import (
    ALL_WELL,
    DEAD,
    HASH,
    HEAD,
    MISSING,
    OTHER,
    OWN,
    behind,
    communicator,
    missing,
    rank,
    report,
)

from muster_checks.ncclras.parse_json import parse_json
from muster_checks.ncclras.parse_text import parse_text
from muster_checks.ncclras.report import UNKNOWN_HOST, MalformedReport, RasRank, host_of

NAME = HASH.removeprefix("0x")
SILENT = RasRank(11, OTHER, 3, 7011)


def test_json_names_the_ranks_that_do_not_answer() -> None:
    ranks = [rank(number) for number in range(11)]
    [found] = parse_json(report(communicator(ranks, [missing(11), missing(12, unresponsive=False)])))
    assert (found.name, found.size, found.silent, found.first_host) == (NAME, 13, (SILENT,), OWN)


def test_a_dead_rank_is_silent() -> None:
    [found] = parse_json(report(communicator([rank(0)], [missing(11, unresponsive=False, dead=True)])))
    assert found.silent == (SILENT,)


def test_json_names_the_ranks_that_have_launched_fewer_operations() -> None:
    ranks = [rank(number, reduced=6650 - (number == 3)) for number in range(8)]
    [found] = parse_json(report(communicator(ranks)))
    assert [each.rank for each in found.behind] == [3]
    assert found.progress == 8 * 6650 - 1 + 8


def test_without_a_majority_nobody_is_behind() -> None:
    [found] = parse_json(report(communicator([rank(number, reduced=number // 4) for number in range(8)])))
    assert found.behind == ()


@pytest.mark.parametrize("text", [MISSING, DEAD])
def test_text_names_the_ranks_that_do_not_answer(text: str) -> None:
    [found] = parse_text(text.encode())
    assert (found.name, found.size, found.silent) == (NAME, 16, (SILENT,))


def test_text_does_not_guess_which_of_several_processes_a_rank_is() -> None:
    more = "  Process 7011 on node 192.0.2.7 managing GPU 3\n"
    text = DEAD.replace(more, more + more.replace("7011", "7012")).replace("rank: 11", "ranks: 11,12")
    [found] = parse_text(text.encode())
    assert [(each.rank, each.host) for each in found.silent] == [(11, UNKNOWN_HOST), (12, UNKNOWN_HOST)]


def test_text_names_the_ranks_that_have_launched_fewer_operations() -> None:
    [found] = parse_text(behind().encode())
    assert found.behind == (RasRank(3, OWN, 3, 7003), RasRank(12, OTHER, 4, 7012))
    [later] = parse_text(behind(6651, 6650).encode())
    assert later.progress > found.progress


def test_a_job_in_order_names_nobody() -> None:
    assert parse_text(ALL_WELL.encode()) == []
    [found] = parse_json(report(communicator([rank(0), rank(1)])))
    assert found.silent == found.behind == ()


@pytest.mark.parametrize("text", ["10.0.0.1\n; reboot", "node-7", "", "999.1.1.1", "a" * 200])
def test_a_host_is_an_address_or_unknown(text: str) -> None:
    assert host_of(text) == UNKNOWN_HOST


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"nccl_version": "2.28.9", "communicators": {}}',
        b'{"nccl_version": "2.28.9", "communicators": [{"hash": "x", "size": 2}]}',
        b'{"nccl_version": "2.28.9", "communicators": [{"hash": "0x1", "size": -2}]}',
        b'{"nccl_version": "2.28.9", "communicators": [{"hash": "0x1", "size": 1e400}]}',
        b'{"nccl_version": "2.28.9", "communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": "a"}]}]}',
        b'{"nccl_version": "\xff\xfe"}',
        b"[" * 100_000,
        report(communicator([rank(0)]))[:-30],
        json.dumps({"nccl_version": "2", "communicators": [{"hash": "0x1", "size": 1}] * 5000}).encode(),
    ],
)
def test_what_is_not_json_of_ras_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedReport):
        parse_json(body)


@pytest.mark.parametrize("body", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xfe\x00", b"hello\n" * 1000])
def test_what_is_not_text_of_ras_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedReport):
        parse_text(body)


def test_text_without_end_is_an_error() -> None:
    many = "".join(f"#0-{n} ({n:016x}) INCOMPLETE\n  The missing rank: {n}\n" for n in range(5000))
    with pytest.raises(MalformedReport):
        parse_text((HEAD + many).encode())


def test_no_mutation_of_an_answer_breaks_a_parser() -> None:
    """Each is understood, or an error of ours."""
    rng = random.Random(28028)
    samples = [MISSING.encode(), DEAD.encode(), behind().encode(), report(communicator([rank(0)], [missing(1)]))]
    for _ in range(400):
        body = bytearray(rng.choice(samples))
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(body))
            body[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        for parse in (parse_json, parse_text):
            try:
                found = parse(bytes(body))
            except MalformedReport:
                continue
            assert all(each.host == host_of(each.host) or each.host == UNKNOWN_HOST for c in found for each in c.silent)
