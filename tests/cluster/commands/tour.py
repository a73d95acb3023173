"""`make tour`: types docs/tour.md in a clean folder, beside a sandbox of its own, and writes what was printed into it.

test_tour.py does the same and compares.
"""

import contextlib
import os
import re
import secrets
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.cluster.commands.tour_page import INTERRUPT, Step, steps, written  # noqa: E402 - run as a script, from anywhere

from muster_sandbox.programs.control_plane import find_or_build  # noqa: E402

PAGE = ROOT / "docs" / "tour.md"
# guards against hanging: far more than anything takes
COMMAND_LIMIT_S = 120.0
START_LIMIT_S = 240.0
LOOK_AGAIN_S = 0.2


class Failed(Exception):
    """A step did not do what the page says; the text says which, and what was printed."""


class Shell:
    """One that is typed into, as a terminal's: what one command sets holds for the next."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """What it printed, on both streams. Raises Failed where it does not end."""
        assert self._process.stdin
        assert self._process.stdout
        end = secrets.token_hex(16).encode()
        self._process.stdin.write(b"{ %s\n} </dev/null; echo %s\n" % (command.encode(), end))
        self._process.stdin.flush()
        printed = b""
        deadline = time.monotonic() + COMMAND_LIMIT_S
        while not printed.endswith(end + b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))
            piece = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                raise Failed(f"$ {command}\ndid not end; it printed:\n{printed.decode(errors='replace')}")
            printed += piece
        return printed[: -len(end) - 1].decode(errors="replace")

    def close(self) -> None:
        """With all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Terminal:
    """The other one, in which `make sandbox` goes on running."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self._output.read_text(errors="replace")

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise Failed(f"the sandbox has ended:\n{self.text[-3000:]}")

    def interrupt(self) -> str:
        """Its last words."""
        self.require_alive()
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"Ctrl-C did not end the sandbox:\n{self.text[-3000:]}") from None
        if code:
            raise Failed(f"the sandbox ended with {code}:\n{self.text[-3000:]}")
        return self.text.splitlines()[-1]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(COMMAND_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


class TourWalk:
    """Types the steps. compare: what is printed has to be what the page says."""

    def __init__(self, place: Path, binaries: Path, *, compare: bool) -> None:
        self.place, self.compare = place, compare
        self.temporary, home, self.folder = (place / name for name in ("tmp", "home", "muster"))
        for folder in (self.temporary, home, self.folder):
            folder.mkdir()
        # of a checkout, what the page needs
        (self.folder / ".venv").symlink_to(sys.prefix)
        (self.folder / "examples").symlink_to(ROOT / "examples")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "KUBE"))}
        self._environment = kept | {
            "HOME": str(home),
            "TMPDIR": str(self.temporary),
            "LC_ALL": "C.UTF-8",
            "KUBEBUILDER_ASSETS": str(binaries),
        }
        self._stack = contextlib.ExitStack()
        self._shell = self._stack.enter_context(contextlib.closing(Shell(self.folder, self._environment)))
        self._terminal: Terminal | None = None

    def step(self, step: Step) -> str:
        """What was printed. Raises Failed."""
        limit_s = START_LIMIT_S if step.background else COMMAND_LIMIT_S if step.until else 0.0
        deadline = time.monotonic() + limit_s
        look = self._look(step)
        while True:
            printed = look()
            wanted = bool(re.search(step.until, printed)) and (bool(printed) or not step.background)
            if wanted and (not self.compare or step.says(printed)):
                return printed
            if time.monotonic() >= deadline:
                why = step.difference(printed) if wanted else f"never printed {step.until or step.background!r}"
                within = f" within {limit_s:.0f} s" if limit_s else ""
                raise Failed(f"docs/tour.md:{step.first}: $ {step.command}\n{why}{within}\nIt printed:\n{printed}")
            if self._terminal:
                self._terminal.require_alive()
            time.sleep(LOOK_AGAIN_S)

    def _look(self, step: Step) -> Callable[[], str]:
        if step.command == INTERRUPT:
            assert self._terminal, "the page ends what it has not started"
            return self._terminal.interrupt
        if not step.background:
            return lambda: self._as_everywhere(self._shell.run(step.command))
        output = self.place / "terminal.txt"
        self._terminal = Terminal(make_command(step.command), self.folder, self._environment, output)
        self._stack.callback(self._terminal.close)

        def shown() -> str:
            assert self._terminal
            found = re.search(step.background, self._terminal.text, re.DOTALL)
            return self._as_everywhere(found[0]) if found else ""

        return shown

    def _as_everywhere(self, printed: str) -> str:
        """With the folder that a person's sandbox would have."""
        return re.sub(r"muster-sandbox-\d+", "muster-sandbox-1000", printed.replace(str(self.temporary), "/tmp"))

    def close(self) -> None:
        self._stack.close()


def make_command(command: str) -> list[str]:
    """What `make TARGET ARGS=…` types last, by the Makefile: the virtual environment is there."""
    program, target, *variables = shlex.split(command)
    assert program == "make", command
    known = {"BIN": ".venv/bin"} | {name: value for name, _, value in (word.partition("=") for word in variables)}
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe, f"no target {target}"
    last = recipe[1].splitlines()[-1].strip("\t@")
    return shlex.split(re.sub(r"\$\((\w+)\)", lambda found: known.get(found[1], ""), last))


@contextlib.contextmanager
def start_tour(binaries: Path, *, compare: bool) -> Iterator[TourWalk]:
    with tempfile.TemporaryDirectory(prefix="muster-tour-", ignore_cleanup_errors=True) as place:
        walk = TourWalk(Path(place).resolve(), binaries, compare=compare)
        with contextlib.closing(walk):
            yield walk


def main() -> int:
    page = PAGE.read_text()
    with start_tour(find_or_build(print), compare=False) as walk:
        printed = {}
        for step in steps(page):
            print(f"$ {step.command}", flush=True)
            printed[step] = walk.step(step)
            print(printed[step])
    PAGE.write_text(written(page, printed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
