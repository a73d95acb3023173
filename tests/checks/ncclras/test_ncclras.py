"""The whole check against a service that speaks RAS's protocol, and against others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.checks.ncclras.ras_service import (
    MISSING,
    OTHER,
    RasService,
    behind,
    communicator,
    listening,
    missing,
    rank,
    report,
)

from muster_checks.base.counter_history import History
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.ncclras import NCCLRAS, NcclRasParameters
from muster_checks.ncclras import client as ras_client
from muster_checks.ncclras.client import ask

SILENT = report(communicator([rank(0), rank(1)], [missing(2)]))
WELL = report(communicator([rank(0), rank(1), rank(2)]))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_client, "CONNECT_S", 60.0)  # under load loopback may take longer than another node


class Now:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


async def run(node: NodeView, service: Any, **parameters: Any) -> Result:
    async with listening(service) as port:
        return await run_probe(NCCLRAS, node, NcclRasParameters(ras_port=port, again_after_s=0, **parameters))


def facts(result: Result) -> set[tuple[str, str, str]]:
    return {(each.component, each.verdict.value, each.reason) for each in result.findings}


@pytest.fixture
def node(tmp_path: Path, now: Now) -> NodeView:
    return NodeView(root=tmp_path, history=History(now))


async def test_a_silent_rank_is_a_warning_on_its_node(node: NodeView) -> None:
    found = await run(node, RasService(SILENT).serve)
    assert facts(found) == {(f"peer/{OTHER}", "WARN", "SilentRanks"), ("host", "PASS", "Ok")}
    local = report(communicator([rank(0)], [missing(2, "127.0.0.1")]))
    assert facts(await run(node, RasService(local).serve)) == {("host", "WARN", "SilentRanks")}


async def test_a_rank_that_is_silent_for_a_moment_is_no_warning(node: NodeView) -> None:
    service = RasService(SILENT, WELL)
    assert facts(await run(node, service.serve)) == {("host", "PASS", "Ok")}
    assert service.commands.count(b"STATUS") == 2


async def test_only_the_node_of_the_first_rank_names_other_nodes(node: NodeView) -> None:
    elsewhere = report(communicator([rank(0, "192.0.2.1"), rank(1)], [missing(2)]))
    assert facts(await run(node, RasService(elsewhere).serve)) == {("host", "PASS", "Ok")}


async def test_an_nccl_that_does_not_know_json_answers_in_text(node: NodeView) -> None:
    service = RasService(MISSING.encode(), knows_json=False)
    assert facts(await run(node, service.serve)) == {(f"peer/{OTHER}", "WARN", "SilentRanks"), ("host", "PASS", "Ok")}
    assert b"VERBOSE STATUS" in service.commands


async def test_json_that_is_too_long_is_asked_for_as_text() -> None:
    large = report(communicator([rank(number) for number in range(64)]))
    async with listening(RasService(large, text=MISSING.encode()).serve) as port:
        [found] = await ask("127.0.0.1", port, timeout_s=16, body_bytes=len(large) - 1)
        assert [each.rank for each in found.silent] == [11]
        [found] = await ask("127.0.0.1", port, timeout_s=16, body_bytes=len(large))
        assert found.size == 64


@pytest.mark.parametrize("knows_json", [True, False])
async def test_ranks_that_others_wait_for_are_named_after_a_time_without_progress(
    node: NodeView, now: Now, *, knows_json: bool
) -> None:
    stuck = report(communicator([rank(n, reduced=50 - (n == 1)) for n in range(4)]))
    service = RasService(stuck if knows_json else behind().encode(), knows_json=knows_json)
    for _ in range(10):
        assert (await run(node, service.serve)).verdict is Verdict.PASS
        now.s += 60
    assert ("host", "WARN", "RanksBehind") in facts(await run(node, service.serve))


async def test_a_job_in_which_ranks_are_late_but_go_on_is_no_warning(node: NodeView, now: Now) -> None:
    """One rank is always the last one, as the user guide says of uneven work."""
    for step in range(40):
        late = report(communicator([rank(n, reduced=50 + step - (n == 1)) for n in range(4)]))
        assert facts(await run(node, RasService(late).serve)) == {("host", "PASS", "Ok")}
        now.s += 60


async def test_two_jobs_of_one_name_and_one_that_begins_again_are_not_stalled(node: NodeView, now: Now) -> None:
    for number in range(20):
        late = report(communicator([rank(n, reduced=(50, 20)[number % 2] - (n == 1)) for n in range(4)]))
        assert facts(await run(node, RasService(late).serve)) == {("host", "PASS", "Ok")}
        now.s += 60


async def test_where_nobody_listens_the_check_does_not_apply(node: NodeView) -> None:
    async with listening(RasService(WELL).serve) as port:
        pass
    found = await run_probe(NCCLRAS, node, NcclRasParameters(ras_port=port))
    assert (found.verdict, found.reason) == (Verdict.SKIP, "NoNcclJob")


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def _closes(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _no_newline(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"x" * 100_000)
    writer.close()


async def _says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SERVER PROTOCOL 2\nOK\n")
    try:
        while not reader.at_eof():
            writer.write(b'{"communicators": [' + b" " * 65536)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        (_http, "Unparsable"),
        (_closes, "Unparsable NoAnswer"),
        (_no_newline, "Unparsable NoAnswer"),
        (_says_nothing, "NoAnswer"),
        (_never_ends, "TooLarge"),
        (RasService(b"").serve, "Unparsable"),
        (RasService(b"{]").serve, "Unparsable"),
    ],
)
async def test_a_stranger_on_the_port_is_unknown_and_never_a_warning(node: NodeView, service: Any, reason: str) -> None:
    found = await run(node, service, **({"answer_timeout_s": 0.2} if service is _says_nothing else {}))
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason in reason.split()


async def test_a_report_about_very_many_nodes_is_bounded(node: NodeView) -> None:
    absent = [missing(number, f"192.0.2.{number}") for number in range(1, 250)]
    found = await run(node, RasService(report(communicator([rank(0)], absent))).serve)
    assert len([each for each in found.findings if each.verdict is Verdict.WARN]) == 32
    assert all(len(each.message.encode()) <= 256 for each in found.findings)


@pytest.mark.parametrize("text", [SILENT, MISSING.encode()])
def test_an_answer_that_was_recorded_in_a_pod_is_judged(text: bytes) -> None:
    found = run_recorded(NCCLRAS, text, NcclRasParameters())
    assert found is not None
    assert (f"peer/{OTHER}", "WARN", "SilentRanks") in facts(found)


def test_one_recorded_answer_does_not_prove_a_stall() -> None:
    found = run_recorded(NCCLRAS, behind().encode(), NcclRasParameters())
    assert found is not None
    assert found.verdict is Verdict.PASS
    [finding] = found.findings
    assert {each.name: each.value for each in finding.measurements}["ranks_behind"] == 2


def test_text_of_another_tool_is_not_its_own() -> None:
    assert run_recorded(NCCLRAS, b"# nThread 1 nGpus 8\n", NcclRasParameters()) is None
    broken = run_recorded(NCCLRAS, b'{"communicators": 1', NcclRasParameters())
    assert broken is not None
    assert broken.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "values", [{"address": "localhost"}, {"address": "a b"}, {"ras_port": 0}, {"stalled_after_s": 1}]
)
def test_a_bad_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NcclRasParameters.model_validate(values)


def test_only_the_configuration_says_whom_it_asks() -> None:
    assert not NCCLRAS.enabled
    assert NcclRasParameters.configured == set(NcclRasParameters.model_fields)
