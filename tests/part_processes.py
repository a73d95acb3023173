"""Processes of Muster's parts that are there in a moment: forked from one that has loaded the parts once.

Each is a process of its own, with its own environment, output, exit code and signals, as one that ``python -m`` starts.
Loading a part takes up to a second of a processor, and tests start hundreds. What measures memory starts the real one.
"""

import contextlib
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

_NETWORKS = Path("/run/netns")  # ip-netns(8)
_CLONE_NEWNET = 0x40000000  # sched.h
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "muster_agent.app",
        "muster_tainter.app",
        "muster_tainter.service",
        "muster_operator.app",
        "muster_operator.proxy.app",
        "muster_operator.proxy.logs",
        "muster_operator.vipu.simulator.app",
        "muster_cli.command_table",
    ]
)


class PartProcess:
    """``python -m MODULE WORDS`` in a session of its own: what tests use of subprocess.Popen.

    errors: the file to which its standard error is appended. Its standard output is read at ``stdout``.
    network: the namespace of ``ip netns`` that it runs in
    """

    def __init__(
        self, module: str, words: Sequence[str], environ: Mapping[str, str], errors: Path, network: str = ""
    ) -> None:
        self.args = [module, *words]
        reader, writer = _FORKS.Pipe(duplex=False)
        arguments = (module, tuple(words), dict(environ), writer, str(errors), network)
        self._process = _FORKS.Process(target=_run, args=arguments)
        with reader, writer:
            self._process.start()
            self.stdout = os.fdopen(os.dup(reader.fileno()), "rb")

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; the negative number of the signal that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired, with seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing, where it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_muster(
    words: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """A command of ``muster``, to its end: what tests use of subprocess.run, where the command is a means and not what
    is tested. There is nothing on its standard input. Raises subprocess.TimeoutExpired, with seconds."""
    with tempfile.NamedTemporaryFile() as errors:
        process = PartProcess("muster_cli", words, environ, Path(errors.name))
        guard = threading.Timer(timeout_s, process.kill)
        guard.start()
        try:
            with process.stdout as output:
                printed = output.read().decode()  # until it ends
            code = process.wait()
        finally:
            guard.cancel()
        if code == -signal.SIGKILL:
            raise subprocess.TimeoutExpired(process.args, timeout_s, printed)
        return subprocess.CompletedProcess(process.args, code, printed, errors.read().decode())


def start_program(
    module: str, words: Sequence[str], environ: Mapping[str, str], errors: Path, inside: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """The same as a program that loads itself, where memory is measured or namespaces are entered.

    inside: the beginning of a command line that ends with another.
    """
    with errors.open("ab") as log:
        return subprocess.Popen(
            [*inside, sys.executable, "-m", module, *words],
            stdout=subprocess.PIPE, stderr=log, env=dict(environ), start_new_session=True,
        )  # fmt: skip


def _run(
    module: str, words: Sequence[str], environ: Mapping[str, str], output: Connection, errors: str, network: str
) -> None:
    os.setsid()
    if network:
        _enter_network(network)
    os.environ.clear()
    os.environ.update(environ)
    log = os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor, stream in ((output.fileno(), 1), (log, 2)):
        os.dup2(descriptor, stream)
    output.close()
    os.close(log)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _enter_network(name: str) -> None:
    """setns(2), which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (_NETWORKS / name).open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", name)
