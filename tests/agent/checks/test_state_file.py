"""The state file: atomic, kept aside when damaged, and no reason to die when the disk is."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading

import pytest
from tests.agent.kernel_log_only import kernel_log_only

from muster_agent.checks.state_file import (
    BEHIND_CHANGE_S,
    MEASUREMENTS_LIMIT,
    POSITIONS_EVERY_S,
    RERUNS_EVERY_S,
    RETRY_S,
    StateFile,
    StateSaver,
    StoredCheck,
    StoredRequest,
    StoredState,
)
from muster_agent.findings.ledger import OPEN_LIMIT
from muster_agent.findings.stored_ledger import StoredLedger
from muster_agent.findings.verdict_history import VerdictChange
from muster_checks.base.vocabulary import Finding, Measurement, Result, Verdict


def stored(counter: int = 1, node: str = "n1") -> StoredState:
    check = StoredCheck(ledger=StoredLedger(boot_id="b", counter=counter), position=b"\x00place", verdict="PASS")
    return StoredState(version=1, node=node, checks={"dmesg": check})


def test_what_was_saved_is_loaded(tmp_path):
    StateFile(tmp_path / "made", "n1").save(stored(7))
    assert StateFile(tmp_path / "made", "n1").load() == stored(7)


def result(findings: int = 1, measurements: int = 1) -> Result:
    numbers = tuple(Measurement(name=f"m{n}", value=float(n), unit="GB/s") for n in range(measurements))
    found = [
        Finding(component=f"gpu/{n}", verdict=Verdict.PASS, reason="", message="sound", measurements=numbers)
        for n in range(findings)
    ]
    return Result(check="pciebw", verdict=Verdict.PASS, findings=tuple(found), started=1_700_000_000.25, duration_s=2.5)


def test_results_changes_requests_and_readings_are_kept(tmp_path):
    check = StoredCheck(
        ledger=StoredLedger(boot_id="b"),
        verdict="FAIL",
        last=result(),
        ran_at=1_700_000_000.25,
        changes=(VerdictChange(at=1.0, to="PASS"), VerdictChange(at=2.0, old="PASS", to="FAIL", reason="Slow")),
    )
    asked = StoredRequest(id="r1", runs=2, passes=1, begun=1, ran_at=3.0)
    kept = StoredState(
        version=1, node="n1", checks={"pciebw": check}, requests=(asked,), idle_since=12.5, counters=b"\x00\xff"
    )
    StateFile(tmp_path, "n1").save(kept)
    assert StateFile(tmp_path, "n1").load() == kept


def test_a_file_of_the_version_before_is_read(tmp_path):
    ledger = {"bootId": "b", "counter": 7}
    old = {"ledger": ledger, "position": "AHBsYWNl", "verdict": "FAIL", "lastChange": 12.5}
    state = StateFile(tmp_path, "n1")
    state.path.write_text(json.dumps({"version": 1, "node": "n1", "checks": {"dmesg": old}}))
    loaded = state.load()
    assert loaded is not None
    check = StoredCheck(
        ledger=StoredLedger(boot_id="b", counter=7), position=b"\x00place", verdict="FAIL", last_change=12.5
    )
    assert loaded == StoredState(version=1, node="n1", checks={"dmesg": check})
    assert (loaded.checks["dmesg"].last, loaded.requests, loaded.idle_since) == (None, (), 0.0)


def test_a_last_result_is_kept_to_a_bound(tmp_path):
    many = StoredCheck(ledger=StoredLedger(boot_id="b"), last=result(findings=1000, measurements=500))
    assert many.last is not None
    assert len(many.last.findings) == OPEN_LIMIT
    assert {len(finding.measurements) for finding in many.last.findings} == {MEASUREMENTS_LIMIT}
    assert [finding.component for finding in many.last.findings[:2]] == ["gpu/0", "gpu/1"], "the worst come first"
    StateFile(tmp_path, "n1").save(StoredState(version=1, node="n1", checks={"pciebw": many}))
    loaded = StateFile(tmp_path, "n1").load()
    assert loaded is not None
    assert loaded.checks["pciebw"] == many


def test_nothing_saved_is_no_error(tmp_path):
    assert StateFile(tmp_path, "n1").load() is None


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"[]", b'{"version":1}', b'{"version":9,"node":"n1","checks":{}}', b"\xff"),
        b'{"version":1,"node":"n\xff","checks":{}}',  # one flipped bit makes a byte that is no text
    ],
)
def test_a_damaged_file_is_kept_aside_and_named(tmp_path, raw, caplog):
    state = StateFile(tmp_path, "n1")
    state.path.write_bytes(raw)
    assert state.load() is None
    assert (tmp_path / "agent.json.bad").read_bytes() == raw
    (warning,) = warnings_of(caplog)
    assert str(state.path) in warning
    assert "agent.json.bad" in warning


def test_the_state_of_another_node_is_ignored(tmp_path, caplog):
    StateFile(tmp_path, "n1").save(stored())
    assert StateFile(tmp_path, "n2").load() is None
    (warning,) = warnings_of(caplog)
    assert "n1" in warning
    assert "n2" in warning


def test_a_crash_while_saving_leaves_the_old_content(tmp_path):
    state = StateFile(tmp_path, "n1")
    state.save(stored(1))
    (tmp_path / "agent.json.new").write_bytes(b'{"half')
    assert state.load() == stored(1)


def test_only_one_process_holds_the_folder_and_death_frees_it(tmp_path):
    one, two = StateFile(tmp_path, "n1"), StateFile(tmp_path, "n1")
    assert one.lock()
    assert one.lock(), "asking again is harmless"
    assert not two.lock()
    assert (one.locked, two.locked) == (True, False)
    one.unlock()
    assert two.lock()
    two.unlock()


def test_a_folder_that_cannot_be_made_is_no_reason_to_wait(tmp_path, caplog):
    (tmp_path / "file").touch()
    nowhere = StateFile(tmp_path / "file" / "sub", "n1")
    assert nowhere.lock()
    assert not nowhere.locked, "another agent can publish for the node, so this one must disown nothing"
    (warning,) = warnings_of(caplog)
    assert str(tmp_path / "file" / "sub") in warning


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


class Disk:
    def __init__(self) -> None:
        self.saved: list[StoredState] = []
        self.full = False
        self.refuses: Exception = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(self, value: StoredState) -> None:
        if self.full:
            raise self.refuses
        self.saved.append(value)


class Clock:
    """Sleeping passes time at once, and lets others run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Bench:
    def __init__(self) -> None:
        self.disk, self.clock, self.errors, self.counter = Disk(), Clock(), 0, 0
        self.saver = StateSaver(
            lambda: stored(self.counter),
            self.disk.save,
            on_error=self._error,
            clock=lambda: self.clock.now,
            sleep=self.clock.sleep,
        )

    def _error(self) -> None:
        self.errors += 1

    async def until(self, look) -> None:
        async with asyncio.timeout(60):
            while not look():  # noqa: ASYNC110 - what is waited for happens on another thread or task
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench():
    made = Bench()
    task = asyncio.create_task(made.saver.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_is_saved_right_behind_its_report(bench: Bench):
    for n in range(3):
        bench.counter = n + 1
        bench.saver.save_now()
        await bench.until(lambda n=n: len(bench.disk.saved) == n + 1)
    assert bench.clock.slept == [BEHIND_CHANGE_S] * 3  # and not once until the next time for positions


async def test_positions_alone_are_saved_every_few_seconds_at_most(bench: Bench):
    bench.saver.save_soon()
    await bench.until(lambda: bench.disk.saved)
    bench.counter += 1
    bench.saver.save_soon()
    await bench.until(lambda: len(bench.disk.saved) == 2)
    assert bench.clock.slept == [POSITIONS_EVERY_S]


async def test_runs_that_changed_nothing_are_saved_every_few_minutes_at_most(bench: Bench):
    bench.saver.save_lazily()
    await bench.until(lambda: bench.disk.saved)
    for _ in range(5):
        bench.counter += 1
        bench.saver.save_lazily()
    await bench.until(lambda: len(bench.disk.saved) == 2)
    assert bench.clock.slept == [RERUNS_EVERY_S]


class StoppedClock(Clock):
    """Nothing that sleeps wakes before the test lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.now + seconds
        while self.now < until:
            await self._moved.wait()

    async def passes(self, seconds: float) -> None:
        self.now += seconds
        self._moved.set()
        await asyncio.sleep(0)
        self._moved = asyncio.Event()


@pytest.fixture
async def slow():
    made = Bench()
    made.clock = StoppedClock()
    made.saver = StateSaver(
        lambda: stored(made.counter), made.disk.save, clock=lambda: made.clock.now, sleep=made.clock.sleep
    )
    task = asyncio.create_task(made.saver.run())
    made.saver.save_lazily()
    await made.until(lambda: made.disk.saved)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


LAZY, SOON, BEHIND = RERUNS_EVERY_S, POSITIONS_EVERY_S, BEHIND_CHANGE_S


@pytest.mark.parametrize(
    "steps",
    [
        [("save_lazily", [LAZY]), ("save_soon", [LAZY, SOON])],
        [("save_lazily", [LAZY]), ("save_soon", [LAZY, SOON]), ("save_lazily", [LAZY, SOON])],
        [("save_lazily", [LAZY]), ("save_now", [LAZY, BEHIND])],
        [("save_soon", [SOON]), ("save_now", [SOON, BEHIND]), ("save_soon", [SOON, BEHIND])],
        [("save_soon", [SOON]), ("save_lazily", [SOON])],
    ],
)
async def test_the_most_urgent_save_decides_when(slow: Bench, steps):
    slow.counter += 1
    for wish, waits in steps:
        getattr(slow.saver, wish)()
        await slow.until(lambda waits=waits: slow.clock.slept == waits)
    await slow.clock.passes(slow.clock.slept[-1])
    await slow.until(lambda: len(slow.disk.saved) == 2)
    assert slow.clock.slept == steps[-1][1]


async def test_what_waits_is_saved_at_the_end(slow: Bench):
    slow.counter += 1
    slow.saver.save_lazily()
    assert await slow.saver.flush()
    assert slow.disk.saved[-1] == stored(1)


async def test_a_change_that_the_disk_refused_is_tried_again_soon(bench: Bench):
    bench.disk.full = True
    bench.saver.save_now()
    await bench.until(lambda: bench.errors >= 2)
    assert bench.clock.slept[:2] == [BEHIND_CHANGE_S, RETRY_S]


async def test_what_is_the_same_is_not_saved_again(bench: Bench):
    bench.saver.save_now()
    await bench.until(lambda: bench.disk.saved)
    assert await bench.saver.flush()
    assert len(bench.disk.saved) == 1


async def test_what_has_just_been_saved_is_not_saved_again_before_its_saver_knows():
    disk = Disk()
    saver = StateSaver(stored, disk.save)
    first = asyncio.create_task(saver.flush())
    while saver._under_way is None or not saver._under_way.done():  # noqa: ASYNC110 - `first` has no turn since
        await asyncio.sleep(0)
    assert await saver.flush()
    assert await first
    assert len(disk.saved) == 1


async def test_what_the_disk_refused_is_saved_again(bench: Bench):
    bench.disk.full = True
    assert not await bench.saver.flush()
    bench.disk.full = False
    assert await bench.saver.flush()
    assert len(bench.disk.saved) == 1


async def test_text_that_is_no_text_ends_no_saver(bench: Bench, caplog):
    bench.disk.refuses = UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
    bench.disk.full = True
    assert not await bench.saver.flush()
    assert (bench.errors, len(warnings_of(caplog))) == (1, 1)


async def test_a_full_disk_is_logged_once_and_counted_each_time(bench: Bench, caplog):
    bench.disk.full = True
    bench.saver.save_now()
    await bench.until(lambda: bench.errors >= 3)
    assert len(warnings_of(caplog)) == 1
    bench.disk.full = False
    await bench.until(lambda: bench.disk.saved)
    assert "No space left" in caplog.text


async def test_two_saves_never_write_one_file_at_once(bench: Bench):
    busy, most = 0, 0
    go = threading.Event()

    def save(_: StoredState) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        go.wait(60)
        busy -= 1

    saver = StateSaver(lambda: stored(bench.counter), save)
    first = asyncio.create_task(saver.flush())
    await bench.until(lambda: busy)
    bench.counter += 1
    second = asyncio.create_task(saver.flush())
    await asyncio.sleep(0.05)
    go.set()
    assert await first
    assert await second
    assert most == 1


async def test_a_disk_that_does_not_answer_is_logged(bench: Bench, caplog):
    go = threading.Event()
    saver = StateSaver(stored, lambda _: go.wait(60) and None, on_error=bench._error, slow_s=0.01)
    flushing = asyncio.create_task(saver.flush())
    await bench.until(lambda: bench.errors)
    (warning,) = warnings_of(caplog)
    assert "0.01 s" in warning
    go.set()
    assert await flushing


async def test_an_error_of_our_own_while_saving_is_not_swallowed():
    def save(_: StoredState) -> None:
        raise TypeError("ours")

    with pytest.raises(TypeError, match="ours"):
        await StateSaver(stored, save).flush()


def test_an_agent_whose_disk_hangs_still_ends_on_a_signal(tmp_path):
    log = tmp_path / "kernel.log"
    log.touch()
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / "agent.json.new")  # opening it waits for a reader, who never comes
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}  # nobody answers there
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    (tmp_path / "kubeconfig").write_text(
        json.dumps({"current-context": "c", "clusters": [cluster], "contexts": [context]})
    )
    flags = ["--port", "0", "--host", "127.0.0.1", "--node", "n1", "--kmsg", str(log)]
    flags += ["--kubeconfig", str(tmp_path / "kubeconfig"), "--config", str(kernel_log_only(tmp_path))]
    command = [sys.executable, "-m", "muster_agent", *flags, "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stderr is not None
            assert agent.stdout.readline().startswith("listening on")
            with log.open("a") as file:
                file.write("[    1.0] NVRM: Xid (PCI:0000:b3:00): 79, pid=1\n")
            for line in agent.stderr:
                if "Xid" in line:
                    break
            agent.terminate()
            assert agent.wait(60) == 0
        finally:
            agent.kill()
