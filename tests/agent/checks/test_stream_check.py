"""A stream check: from lines to published findings, through failures, restarts and unreadable sources."""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.agent.recording_reporter import RecordingReporter

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.state_file import StoredCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.clock import AgentClock
from muster_agent.findings import finding_log
from muster_agent.node_agent import FIRST_PASS_S, Agent
from muster_checks.base.declaration import AllClear, Check, CheckStream, Cost, NodeView, Parameters, Sign
from muster_checks.base.vocabulary import Verdict
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import (
    AgentIdentity,
    ClearEntry,
    Metadata,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
)


class Log:
    """What a stream reads: signs that others append, or an exception to break with."""

    def __init__(self) -> None:
        self.entries: list[Sign | AllClear | Exception] = []
        self.trouble = ""
        self.opened_at: list[int] = []
        self.forgotten: list[tuple[str, tuple[str, ...]]] = []
        self.held = asyncio.Event()
        self.held.set()


class LogStream(CheckStream):
    """Counts a batch as dealt with once more is asked for, as the kernel log does."""

    def __init__(self, log: Log, position: bytes | None) -> None:
        self._log, self._next = log, int(position or b"0")
        log.opened_at.append(self._next)

    async def events(self) -> AsyncIterator[list[Sign | AllClear]]:
        while True:
            await self._log.held.wait()
            if self._next < len(self._log.entries):
                entry = self._log.entries[self._next]
                if isinstance(entry, Exception):
                    self._log.entries.pop(self._next)
                    raise entry
                yield [entry]
                self._next += 1
            else:
                self.caught_up = True
                await asyncio.sleep(0)

    def position(self) -> bytes:
        return str(self._next).encode()

    async def drain(self) -> None:
        end = len(self._log.entries)
        while self._next < min(end, len(self._log.entries)) or not (self.caught_up or self._log.trouble):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def health(self) -> str:
        return self._log.trouble

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        self._log.forgotten.append((component, reasons))


class Bench:
    def __init__(self, stored: StoredCheck | None = None, log: Log | None = None) -> None:
        self.log = log or Log()
        self.now = 1_000.0
        self.reporter = RecordingReporter()
        clock = AgentClock(monotonic=lambda: self.now, wall=lambda: self.now, sleep=self._sleep)
        self.local = LocalNode(name="n1", view=NodeView(), boot_id="boot", clock=clock)
        check = Check(
            name="dmesg",
            description="",
            cost=Cost.LIGHT,
            parameters=Parameters,
            timeout_s=5.0,
            devices=("host",),
            stream=lambda _view, _parameters, position: LogStream(self.log, position),
        )
        self.running = StreamCheck(check, Parameters(), self.local, stored, self.reporter, rng=random.Random(1))
        self.agent = Agent(
            self.local, [self.running], AgentIdentity(pod_uid="pod-1", version="1"), reporter=self.reporter
        )

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def until(self, look) -> None:
        async with asyncio.timeout(60):
            while not look():  # noqa: ASYNC110 - what is waited for happens on another thread or task
                await asyncio.sleep(0)

    def findings(self):
        return {(f.reason, f.occurrence, f.count) for f in self.running.ledger.open_findings()}


@contextlib.asynccontextmanager
async def started(stored: StoredCheck | None = None, log: Log | None = None):
    bench = Bench(stored, log)
    task = asyncio.create_task(bench.running.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def sign(reason: str = "Xid79", at: float = 10.0) -> Sign:
    return Sign(component="gpu/0", reason=reason, verdict=Verdict.FAIL, message="bad", at=at, line=f"[{at}] {reason}")


def asked(*clears: ClearEntry) -> NodeHealth:
    return NodeHealth(metadata=Metadata(name="n1"), spec=NodeHealthSpec(clear=clears))


async def test_a_sign_becomes_a_finding_and_a_log_line_with_the_whole_kernel_line(caplog):
    async with started() as bench:
        await bench.until(lambda: bench.running.caught_up)
        bench.log.entries.append(sign())
        await bench.until(lambda: errors(caplog))
        assert bench.findings() == {("Xid79", 1, 1)}
        (line,) = errors(caplog)
        assert "n1" in line
        assert "[10.0] Xid79" in line
        assert bench.agent.unready() == []


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_a_finding_is_published_before_it_is_logged(caplog):
    async with started() as bench:
        await bench.until(lambda: bench.running.caught_up)
        bench.reporter.changed.clear()
        logged = []

        async def publish() -> None:
            await bench.reporter.changed.wait()
            logged.append(errors(caplog))

        publishing = asyncio.create_task(publish())
        await asyncio.sleep(0)  # it waits, as the publisher does
        bench.log.entries.append(sign())
        await publishing
        assert logged == [[]]
        await bench.until(lambda: errors(caplog))


async def test_a_change_that_cannot_be_logged_is_an_error_that_names_the_check(caplog):
    class Fails(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError(record.msg)

    fails = Fails()
    finding_log.log.addFilter(fails)
    try:
        async with started() as bench:
            await bench.until(lambda: bench.running.caught_up)
            bench.log.entries.append(sign())
            await bench.until(lambda: errors(caplog))
    finally:
        finding_log.log.removeFilter(fails)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert bench.running.name in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


async def test_what_a_person_cleared_is_forgotten_by_the_stream_too():
    async with started() as bench:
        bench.log.entries.append(sign())
        await bench.until(bench.findings)
        clear = ClearEntry(check="dmesg", component="gpu/0", occurrence=1, at=rfc3339(11.0))
        bench.running.apply_clears(asked(clear))
        assert bench.log.forgotten == [("gpu/0", ("Xid79",))]
        bench.running.apply_clears(asked(clear))  # the same entry stands there for a while
        assert len(bench.log.forgotten) == 1


async def test_what_was_cleared_before_the_stream_is_open_is_forgotten_when_it_opens():
    async with started() as first:
        first.log.entries.append(sign())
        await first.until(first.findings)
        stored = first.running.stored()
    bench = Bench(stored, first.log)
    bench.running.apply_clears(asked(ClearEntry(check="dmesg", component="*", occurrence=1, at=rfc3339(11.0))))
    assert bench.log.forgotten == []
    task = asyncio.create_task(bench.running.run())
    await bench.until(lambda: bench.running.caught_up)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.log.forgotten == [("gpu/0", ("Xid79",))]


async def test_an_agent_that_lost_its_state_numbers_above_what_its_clean_nodehealth_remembers():
    async with started() as bench:
        checks = (ReportedCheck(name="dmesg", verdict="PASS", last_occurrence=5),)
        bench.agent.apply_health(
            NodeHealth(metadata=Metadata(name="n1"), status=NodeHealthStatus(verdict="PASS", checks=checks))
        )
        bench.log.entries.append(sign())
        await bench.until(bench.findings)
        assert bench.findings() == {("Xid79", 6, 1)}
        await bench.until(bench.agent.desired)
        status = bench.agent.desired()
        assert status is not None
        assert status.checks[0].last_occurrence == 6


async def test_nothing_is_published_before_the_first_pass_is_complete_and_then_with_the_boot():
    log = Log()
    log.held.clear()
    async with started(log=log) as bench:
        await asyncio.sleep(0)
        assert bench.agent.desired() is None
        (reason,) = bench.agent.unready()
        assert reason.startswith("dmesg: Starting: ")
        log.held.set()
        await bench.until(lambda: bench.running.caught_up)
        status = bench.agent.desired()
        assert status is not None
        assert (status.verdict, status.boot_id) == ("PASS", "boot")


async def test_a_first_pass_that_takes_too_long_is_published_without_the_new_boot():
    log = Log()
    log.held.clear()
    async with started(log=log) as bench:
        bench.agent.apply_health(
            msgspec.convert({"metadata": {"name": "n1"}, "status": {"bootID": "former"}}, NodeHealth)
        )
        bench.now += FIRST_PASS_S
        status = bench.agent.desired()
        assert status is not None
        assert (status.verdict, status.checks[0].reason, status.boot_id) == ("UNKNOWN", "Starting", "former")


async def test_a_boot_is_named_again_only_when_what_starts_over_has_been_read():
    health = {
        "metadata": {"name": "n1"},
        "status": {"bootID": "former", "checks": [{"name": "dmesg", "verdict": "FAIL", "lastOccurrence": 7}]},
    }
    async with started() as bench:
        await bench.until(lambda: bench.running.caught_up)
        assert bench.agent.desired() is not None
        bench.log.held.clear()
        bench.agent.apply_health(msgspec.convert(health, NodeHealth))
        assert not bench.running.caught_up
        assert bench.agent.desired() is None
        bench.log.held.set()
        await bench.until(lambda: bench.running.caught_up)
        status = bench.agent.desired()
        assert status is not None
        assert (status.verdict, status.boot_id) == ("PASS", "boot")


async def test_what_could_not_be_read_to_its_end_in_time_is_no_pass():
    async with started() as bench:
        await bench.until(lambda: bench.running.caught_up)
        bench.log.held.clear()
        bench.log.entries.append(sign())
        bench.running.check = dataclasses.replace(bench.running.check, timeout_s=0.01)
        answered = await bench.agent.run_check(bench.running, Parameters())
        assert (answered.result.verdict, answered.result.reason) == (Verdict.UNKNOWN, "Timeout")
        assert bench.running.view().verdict is Verdict.PASS, "what is published stands"
        bench.log.held.set()
        await bench.until(bench.findings)


async def test_an_unreadable_source_is_unknown_and_never_a_failure():
    log = Log()
    log.trouble = "/dev/kmsg: Operation not permitted"
    log.held.clear()
    async with started(log=log) as bench:
        await bench.until(lambda: bench.running.trouble and bench.running.trouble[0] == "SourceUnreadable")
        status = bench.agent.desired()
        assert status is not None, "it does not hold up what else is known"
        assert status.checks[0].verdict == "UNKNOWN"
        assert status.checks[0].message == "/dev/kmsg: Operation not permitted"
        assert status.boot_id == ""
        log.trouble = ""
        log.held.set()
        await bench.until(lambda: bench.running.trouble is None)
        assert bench.agent.desired().boot_id == "boot"


async def test_a_stream_that_breaks_starts_anew_where_it_was():
    async with started() as bench:
        bench.log.entries += [sign("Xid48"), RuntimeError("boom"), sign("Xid79")]
        await bench.until(lambda: len(bench.findings()) == 2)
        assert bench.findings() == {("Xid48", 1, 1), ("Xid79", 2, 1)}
        assert bench.log.opened_at == [0, 1]
        assert bench.reporter.stream_failures == ["dmesg"]
        await bench.until(lambda: bench.running.trouble is None)


async def test_while_a_stream_is_broken_its_findings_stand_and_the_check_is_not_pass():
    log = Log()
    async with started(log=log) as bench:
        await bench.until(lambda: bench.running.caught_up)
        log.entries += [RuntimeError("boom")]
        log_changes = bench.reporter.changes
        await bench.until(lambda: bench.reporter.stream_failures)
        assert bench.reporter.changes > log_changes
        assert bench.running.trouble == ("StreamFailed", "RuntimeError: boom")
        assert bench.running.view().verdict is Verdict.UNKNOWN


async def test_ledger_and_position_saved_at_any_moment_belong_together():
    log = Log()
    clear = AllClear(component="gpu/0", at=30.0, how="driver")
    entries = [sign("Xid48", 10.0), sign("Xid79", 20.0), clear, sign("Xid48", 40.0), sign("Xid48", 41.0)]
    saved: set[bytes] = set()
    async with started(log=log) as bench:
        # at every turn of the loop at which another task may look
        for entry in entries:
            log.entries.append(entry)
            for _ in range(6):
                await asyncio.sleep(0)
                saved.add(msgspec.json.encode(bench.running.stored()))
    assert len(saved) > len(entries)
    for raw in saved:
        log = Log()
        log.entries = list(entries)
        async with started(msgspec.json.decode(raw, type=StoredCheck), log) as again:
            await again.until(lambda again=again: again.running.caught_up)
            assert again.findings() == {("Xid48", 3, 2)}, raw


@pytest.mark.parametrize("reported", [1, 4])
async def test_a_provisional_ledger_gives_way_to_the_nodehealth(reported):
    health = {
        "metadata": {"name": "n1"},
        "status": {
            "bootID": "boot",
            "checks": [
                {
                    "name": "dmesg",
                    "verdict": "PASS",
                    "cleared": [
                        {
                            "component": "gpu/0",
                            "reason": "Xid79",
                            "occurrence": reported,
                            "how": "request",
                            "at": "1970-01-01T00:00:20.000Z",
                        }
                    ],
                }
            ],
        },
    }
    log = Log()
    log.entries = [sign(at=10.0)]
    async with started(log=log) as bench:
        await bench.until(bench.findings)
        bench.agent.apply_health(msgspec.convert(health, NodeHealth))
        await bench.until(lambda: bench.running.caught_up)
        assert bench.findings() == set(), "what had been cleared stays so, though its line was read again"
        log.entries.append(sign(at=50.0))
        await bench.until(bench.findings)
        assert bench.findings() == {("Xid79", reported + 1, 1)}
        bench.agent.apply_health(msgspec.convert(health, NodeHealth))
        assert bench.findings() == {("Xid79", reported + 1, 1)}, "only the first sight counts"


async def test_callers_of_one_check_share_a_run():
    async with started() as bench:
        await bench.until(lambda: bench.running.caught_up)
        calls = 0
        original = bench.running.refresh

        async def counted(parameters):
            nonlocal calls
            calls += 1
            return await original(parameters)

        bench.running.refresh = counted
        results = await asyncio.gather(*(bench.agent.run_check(bench.running, Parameters()) for _ in range(20)))
        assert calls == 1
        assert len({id(result) for result in results}) == 1


async def test_a_nodehealth_without_this_check_changes_nothing():
    async with started() as bench:
        bench.log.entries.append(sign())
        await bench.until(bench.findings)
        bench.agent.apply_health(NodeHealth(metadata=Metadata(name="n1")))
        assert bench.findings() == {("Xid79", 1, 1)}
