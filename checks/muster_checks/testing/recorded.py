"""Replaces a node's hardware: replays recorded tool output, and writes the files of a /sys or /proc."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, Output
from muster_checks.base.counter_history import History
from muster_checks.base.declaration import NodeView

Answer = Output | bytes | str | Callable[[tuple[str, ...]], "Output | bytes | str"]


class RecordedCommands:
    """Answers a command line with the longest recorded prefix of it; a command without a recording is not installed.

    ``answers``: ``{"gc-links": b"…", "gc-info -l": Output(…)}``; plain text means exit code 0 with that stdout.
    ``calls`` lists every command line that was run, with its timeout.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[tuple[str, ...], float]] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,  # noqa: ARG002 - recorded output does not depend on it
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        line = tuple(argv)
        self.calls.append((line, timeout_s))
        fitting = [key for key in self.answers if line[: len(key.split())] == tuple(key.split())]
        if not fitting:
            return Output(argv=line, missing="not found")
        answer = self.answers[max(fitting, key=len)]
        if callable(answer):
            answer = answer(line)
        if isinstance(answer, Output):
            return answer
        raw = answer.encode() if isinstance(answer, str) else answer
        return Output(argv=line, exit_code=0, stdout=raw[:limit_bytes], truncated=len(raw) > limit_bytes)

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if any(key.split()[0] == name for key in self.answers) else None


def failed(argv: str, exit_code: int, stderr: bytes = b"", stdout: bytes = b"") -> Output:
    """A command that failed; a negative exit code: killed by that signal."""
    return Output(argv=tuple(argv.split()), exit_code=exit_code, stdout=stdout, stderr=stderr)


def hung(argv: str, after_s: float = 10.0) -> Output:
    return Output(argv=tuple(argv.split()), timed_out=True, duration_s=after_s)


def lay_out(root: Path, files: Mapping[str, str | int]) -> Path:
    """Write ``{"/sys/class/net/eth0/mtu": 1500}`` under ``root``. Returns ``root``."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def node(root: Path, answers: Mapping[str, Answer] | None = None, clock: Callable[[], float] | None = None) -> NodeView:
    """A node with its files under ``root`` and tools that replay ``answers``."""
    history = History() if clock is None else History(clock)
    return NodeView(root, RecordedCommands(answers or {}), history)
