"""Child processes that never outlive this process.

Each child has its own process group, so that Ctrl-C in the terminal does not end etcd while a test still cleans up. If
this process is killed, the reaper ends the children: a small process at the other end of a pipe. When the pipe closes,
it kills the process groups that were registered through it, and removes directories and addresses. PR_SET_PDEATHSIG
would be simpler, but it fires when the *thread* that forked ends, and tests may start children from a worker thread.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

TAIL_LINES = 25

# Runs isolated (-I -S: 9 MB, 15 ms).
# Lines: "+PID" a group to kill, "-PID" one that ended, "=DIR" a directory to remove, "~LABEL" addresses of lo
# to remove. Addresses are removed last: a process that still used one would send packets to the network, not to lo.
_REAPER = """
import os, shutil, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups, directories, labels = set(), [], []
for line in sys.stdin:
    kind, rest = line[0], line[1:].rstrip("\\n")
    if kind == "+": groups.add(int(rest))
    elif kind == "-": groups.discard(int(rest))
    elif kind == "~": labels.append(rest)
    else: directories.append(rest)
for group in groups:
    try: os.killpg(group, signal.SIGKILL)
    except ProcessLookupError: pass
for _ in range(500):
    alive = False
    for group in groups:
        try: os.killpg(group, 0); alive = True
        except ProcessLookupError: pass
    if not alive: break
    time.sleep(0.01)
for directory in directories:
    shutil.rmtree(directory, ignore_errors=True)
for label in labels:
    os.spawnlp(os.P_WAIT, "ip", "ip", "address", "flush", "dev", "lo", "label", label)
"""


class ProcessDied(RuntimeError):
    """A process has ended unexpectedly; the message contains the end of its log."""


class ProcessReaper:
    """Kills and removes what was registered with it once this process has ended, even by SIGKILL."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _REAPER],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    @property
    def descriptor(self) -> int:
        """The write end of the pipe. A child that gets it as stdin registers itself before it executes its program."""
        return self._writer

    @property
    def pid(self) -> int:
        return self._process.pid

    def remove_at_end(self, directory: Path) -> None:
        os.write(self._writer, f"={directory}\n".encode())

    def remove_addresses_at_end(self, label: str) -> None:
        """Remove the addresses of the loopback interface that carry ``label``."""
        os.write(self._writer, f"~{label}\n".encode())

    def forget(self, pid: int) -> None:
        os.write(self._writer, f"-{pid}\n".encode())

    def close(self) -> None:
        """Make the reaper kill and remove everything that is left, and wait for it."""
        os.close(self._writer)
        self._process.wait(timeout=600)  # an unfinished build is 3 GB of small files, maybe on a slow disk


def spawn(
    command: Sequence[str],
    reaper: ProcessReaper,
    *,
    output: IO[bytes] | int,
    cwd: Path,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own process group, registered with the reaper.

    The shell writes its process ID to the reaper before it executes the program, so the program never runs
    unregistered.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", 'echo "+$$" >&0; exec "$@" </dev/null', "sh", *command],
        stdin=reaper.descriptor,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=cwd,
        env=environ,
    )


class ManagedProcess:
    """A program with its output in ``log``."""

    def __init__(self, name: str, command: Sequence[str], log: Path, reaper: ProcessReaper) -> None:
        self.name = name
        self._command = list(command)
        self._log = log
        self._reaper = reaper
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self._process is not None and (self._process.poll() or 0) < 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = spawn(self._command, self._reaper, output=log, cwd=self._log.parent)

    def require_alive(self) -> None:
        """Raises ProcessDied with the end of the log if the process does not run."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise ProcessDied(f"{self.name} ended with exit code {code}; the end of {self._log}:\n{self.tail()}")

    def tail(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "(no output)"
        return "\n".join(lines[-TAIL_LINES:])

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def stop(self, *, grace_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after ``grace_s``. Also sends SIGCONT, so that a stopped process can end."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        self._wait(grace_s)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._wait(5.0)

    def _wait(self, grace_s: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait(timeout=10)
        # a child in its group may have outlived it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reaper.forget(self._process.pid)
        self._process = None


def wait_for(ready: Callable[[], bool], *, alive: Sequence[ManagedProcess], timeout_s: float, what: str) -> None:
    """Call ``ready`` every 30 ms until it returns True. Raises ProcessDied or TimeoutError, with the logs."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        for component in alive:
            component.require_alive()
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {component.name}\n{component.tail()}" for component in alive)
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s\n{tails}")
        time.sleep(0.03)
