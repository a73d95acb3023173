"""Tools are run for real here: what hangs, dies, floods or leaves children behind must never hold up a check."""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.loop_time import LoopTime
from tests.processes import ends_within
from tests.wording.facts import missing_facts

from muster_checks.base.commands import LocalCommands, Output, explain_not_started, python_child

HANGS = "sleep 300"
ENDED_S = 60.0  # what was killed needs no more to be gone
SOON_S = 20.0  # far below the 300 s of what hangs, far above what a loaded machine needs


async def _sh(script: str, timeout_s: float = SOON_S, limit_bytes: int = 1 << 20) -> Output:
    return await LocalCommands().run(["sh", "-c", script], timeout_s=timeout_s, limit_bytes=limit_bytes)


async def test_a_tool_that_ends_well_gives_all_it_printed() -> None:
    output = await _sh("echo out; echo err >&2")
    assert (output.ok, output.exit_code, output.stdout, output.stderr, output.trouble) == (
        True,
        0,
        b"out\n",
        b"err\n",
        "",
    )


async def test_a_tool_that_is_not_there_says_so() -> None:
    output = await LocalCommands().run(["no-such-tool-of-muster"], timeout_s=SOON_S)
    assert not output.ok
    assert output.exit_code is None
    assert output.trouble == "no-such-tool-of-muster: not found"


def test_a_tool_whose_file_capabilities_may_not_be_gained_says_what_to_do() -> None:
    assert "setcap -r" in explain_not_started(PermissionError(errno.EPERM, "Operation not permitted", "ping"))
    assert "setcap -r" not in explain_not_started(PermissionError(errno.EACCES, "Permission denied", "ping"))


@pytest.mark.parametrize("argv", [["/"], ["sh", "a\0b"], ["/etc/passwd"]])
async def test_what_cannot_be_started_is_no_error_of_ours(argv: list[str]) -> None:
    output = await LocalCommands().run(argv, timeout_s=SOON_S)
    assert output.missing
    assert not output.ok


async def test_the_exit_code_and_the_last_words_are_in_the_trouble() -> None:
    output = await _sh("echo 'cannot open device' >&2; exit 127")
    assert output.exit_code == 127
    assert output.trouble.startswith("sh: ")
    assert output.trouble.endswith(": cannot open device")
    assert missing_facts(output.trouble, "127") == []


async def test_a_tool_that_was_killed_names_the_signal() -> None:
    output = await _sh("kill -SEGV $$")
    assert output.exit_code == -11
    assert missing_facts(output.trouble, "sh", "SIGSEGV") == []


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert missing_facts(Output(argv=("x",), exit_code=-99, stderr=b"why").trouble, "x", "99", "why") == []


async def test_a_tool_that_hangs_is_killed_after_its_time(loop_time: LoopTime) -> None:
    began = time.monotonic()
    output, _ = await _out_of_time("echo begun;", loop_time)
    assert time.monotonic() - began < SOON_S
    assert (output.timed_out, output.exit_code, output.ok) == (True, None, False)
    assert output.stdout == b"begun\n"
    assert missing_facts(output.trouble, "sh", "300 s") == []


async def test_a_tool_that_ignores_sigterm_is_killed_too(loop_time: LoopTime) -> None:
    output, pids = await _out_of_time("trap '' TERM INT HUP;", loop_time)
    assert output.timed_out
    assert ends_within(pids[0], ENDED_S)


async def test_a_grandchild_dies_with_a_tool_that_hangs(loop_time: LoopTime) -> None:
    output, pids = await _out_of_time("", loop_time)
    assert output.timed_out
    assert ends_within(pids[1], ENDED_S)


async def test_a_grandchild_that_holds_the_pipes_does_not_keep_the_result_of_a_tool_that_has_ended() -> None:
    began = time.monotonic()
    output = await _sh(f"{HANGS} & echo $!; exit 3")
    assert time.monotonic() - began < SOON_S
    assert (output.exit_code, output.timed_out) == (3, False)
    assert ends_within(int(output.stdout), ENDED_S)


async def test_a_grandchild_in_a_session_of_its_own_does_not_keep_the_result() -> None:
    # it leaves the process group, so it lives on; what the tool itself said still counts
    output = await _sh("setsid sleep 5 & echo said; exit 0")
    assert output.ok
    assert output.stdout == b"said\n"


async def test_a_grandchild_that_lets_go_of_the_pipes_is_not_left_behind() -> None:
    output = await _sh(f"{HANGS} >/dev/null 2>&1 </dev/null & echo $!")
    assert output.ok
    assert ends_within(int(output.stdout), ENDED_S)


async def test_what_is_over_the_limit_is_read_and_thrown_away() -> None:
    output = await _sh("head -c 3000000 /dev/zero; echo err >&2; exit 0", limit_bytes=1000)
    assert output.exit_code == 0
    assert len(output.stdout) == 1000
    assert output.stderr == b"err\n"
    assert output.truncated
    assert not output.ok
    assert missing_facts(output.trouble, "sh", "MiB") == []


async def test_output_of_just_the_limit_is_whole() -> None:
    output = await _sh("printf 0123456789", limit_bytes=10)
    assert output.ok
    assert output.stdout == b"0123456789"


async def test_a_tool_that_prints_without_end_is_stopped_by_its_time(loop_time: LoopTime) -> None:
    output, _ = await _out_of_time("yes | head -c 5000; yes &", loop_time, limit_bytes=4096)
    assert output.timed_out
    assert output.truncated
    assert len(output.stdout) == 4096


async def test_large_output_of_a_tool_that_has_ended_is_whole() -> None:
    output = await _sh("head -c 1000000 /dev/zero")
    assert output.ok
    assert len(output.stdout) == 1_000_000


async def test_a_tool_gets_no_input() -> None:
    assert (await _sh("cat; echo end")).stdout == b"end\n"


async def test_numbers_and_messages_come_in_the_c_locale_and_our_variables_are_added() -> None:
    output = await LocalCommands().run(
        ["sh", "-c", 'echo $LC_ALL $LANG $MINE; test -n "$PATH"'], timeout_s=SOON_S, environment={"MINE": "yes"}
    )
    assert output.ok
    assert output.stdout == b"C C yes\n"


class _Told:
    """A pipe beside the tool's own: through it a tool tells its number and its child's while it runs."""

    def __enter__(self) -> "_Told":
        self.reading, self.writing = os.pipe()
        self.tells = f"{HANGS} & echo $$ $! >/proc/{os.getpid()}/fd/{self.writing}; wait"
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reading)
        os.close(self.writing)

    def pids(self) -> list[int]:
        return [int(pid) for pid in os.read(self.reading, 100).split()]


async def _started() -> None:
    """Its first word may come before the end of its start here, and a start that is called off is killed outright."""
    for _ in range(100):  # more turns of the loop than a start takes
        await asyncio.sleep(0)


async def _out_of_time(script: str, loop_time: LoopTime, limit_bytes: int = 1 << 20) -> tuple[Output, list[int]]:
    """The output of a tool that does ``script`` and then hangs, with a child, and the numbers of both."""
    with _Told() as told:
        run = asyncio.ensure_future(_sh(f"{script} {told.tells}", 300, limit_bytes))
        pids = await asyncio.to_thread(told.pids)
        await _started()
        await loop_time.passes(300)
        return await run, pids


async def test_a_cancelled_check_leaves_no_tool_behind() -> None:
    with _Told() as told:
        run = asyncio.ensure_future(_sh(f"echo begun; {told.tells}", timeout_s=300))
        pids = await asyncio.to_thread(told.pids)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert len(pids) == 2
    assert all(ends_within(pid, ENDED_S) for pid in pids)


async def test_a_tool_that_is_called_off_may_first_stop_what_works_for_it(tmp_path: Path) -> None:
    commands, stopped = LocalCommands(stop_s=SOON_S), tmp_path / "stopped"
    with _Told() as told:
        script = f"trap ': >{stopped}; exit' TERM; {told.tells}"
        run = asyncio.ensure_future(commands.run(["timeout", "-k", "30", "300", "sh", "-c", script], timeout_s=300))
        await asyncio.to_thread(told.pids)
        await _started()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert stopped.exists()


async def test_a_tool_that_is_called_off_and_goes_on_is_killed() -> None:
    with _Told() as told:
        run = asyncio.ensure_future(
            LocalCommands(stop_s=0.01).run(["sh", "-c", f"trap '' TERM; {told.tells}"], timeout_s=300)
        )
        pids = await asyncio.to_thread(told.pids)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert all(ends_within(pid, ENDED_S) for pid in pids)


@pytest.mark.parametrize("turns", range(8))
async def test_a_check_cancelled_while_its_tool_starts_leaves_no_tool_behind(turns: int) -> None:
    with _Told() as told:
        run = asyncio.ensure_future(_sh(told.tells, timeout_s=300))
        for _ in range(turns):  # some turns of the loop into the start, which takes a handful of them
            await asyncio.sleep(0)
        run.cancel()
        async with asyncio.timeout(SOON_S):
            with pytest.raises(asyncio.CancelledError):
                await run
        os.set_blocking(told.reading, False)
        try:
            pids = told.pids()
        except BlockingIOError:
            pids = []  # killed before its first word, or never started
        assert all(ends_within(pid, ENDED_S) for pid in pids)


@pytest.mark.parametrize("turns", range(4))
async def test_a_check_cancelled_twice_holds_no_pipe_of_its_tool(turns: int, caplog: pytest.LogCaptureFixture) -> None:
    with _Told() as told:
        before = _open_pipes()
        # a child that is not of the group holds them open
        run = asyncio.ensure_future(_sh(f"setsid sh -c '{told.tells}' & wait", timeout_s=300))
        pids = await asyncio.to_thread(told.pids)
        pipes = _open_pipes() - before
        run.cancel()
        for _ in range(turns):  # it kills now, and waits for the end
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        for _ in range(3):  # the loop closes what it was told to
            await asyncio.sleep(0)
        left = _open_pipes() & pipes
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert len(pipes) == 2
    assert not left
    gc.collect()
    assert "never retrieved" not in caplog.text


def _open_pipes() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("pipe:")}


async def test_a_start_that_fails_after_the_check_was_cancelled_disturbs_nobody() -> None:
    run = asyncio.ensure_future(LocalCommands().run(["no-such-tool-of-muster"], timeout_s=SOON_S))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_child_of_ours_runs_one_of_our_modules() -> None:
    output = await LocalCommands().run(python_child("platform"), timeout_s=SOON_S)
    assert output.ok, output.trouble
    assert output.argv[0] == sys.executable


def test_which_finds_what_is_on_the_path() -> None:
    assert LocalCommands().which("sh")
    assert LocalCommands().which("no-such-tool-of-muster") is None
