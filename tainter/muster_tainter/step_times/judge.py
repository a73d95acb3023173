"""Has a child process judge one job, so that its CPU time, memory and crashes are not the tainter's."""

import asyncio
import contextlib

import msgspec

from muster_checks.base.commands import python_child
from muster_tainter.step_times.job_verdict import JobQuestion, JobVerdict

PROGRAM = "muster_tainter.step_times.child"
TIMEOUT_S = 900.0
_ERROR_SHOWN = 300  # characters


class JudgeFailed(Exception):
    """The child process ended without a verdict, for example at its limit of memory or CPU time."""


async def judge_apart(question: JobQuestion, body: bytes | bytearray, *, timeout_s: float = TIMEOUT_S) -> JobVerdict:
    """body: Prometheus' answer. Raises JudgeFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *python_child(PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise JudgeFailed(f"could not start: {error}") from error
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate(msgspec.json.encode(question) + b"\n" + body)
    except TimeoutError as error:
        raise JudgeFailed(f"no verdict within {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(output, type=JobVerdict)
    last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
    raise JudgeFailed(f"exit code {process.returncode}: {last[0][:_ERROR_SHOWN]}")
