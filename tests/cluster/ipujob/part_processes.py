"""Processes of Muster's parts that are there in a moment: forked from one that has loaded the parts once.

Each is a process of its own, with its own environment, log, exit code and signals, as one that ``python -m`` starts.
That takes a second of a processor, which a test of the operator would spend three times.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "muster_operator.app",
        "muster_operator.proxy.app",
        "muster_operator.proxy.logs",
        "muster_operator.vipu.simulator.app",
    ]
)


def start_process(
    module: str, words: Sequence[str], environ: Mapping[str, str], output: Path, log: Path
) -> ForkServerProcess:
    """``python -m MODULE WORDS``. output, log: what its standard output and error are appended to."""
    process = _FORKS.Process(target=_run, args=(module, tuple(words), dict(environ), str(output), str(log)))
    process.start()
    return process


def _run(module: str, words: Sequence[str], environ: Mapping[str, str], output: str, log: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    for stream, path in ((1, output), (2, log)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
