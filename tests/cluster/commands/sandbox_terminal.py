"""Types lines of the documents beside a sandbox, as a person does, and sees to it that none is left out."""

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.commands.running_sandbox import (
    CHANGE_LIMIT_S,
    FAULTY,
    REPOSITORY,
    XID_79,
    RunningSandbox,
    start_sandbox,
    with_own_kernel_log,
)
from tests.cluster.commands.tour import Terminal, make_command
from tests.docs.command_runner import CommandRunner

from muster_sandbox.session.folder import find_running
from muster_sandbox.session.kernel_line import inject_line
from muster_sandbox.simulation.nodes import NODES, NodeShape, node_object

# where a test says nothing else; PORT is an agent's
PLACES = {"NAMESPACE": "default", "CHECK": "dmesg", "FILE": "my-policy.yaml", "DIR": "vipu", "N": "0"}
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"

Test = TypeVar("Test", bound=Callable[..., None])
TYPED_BY: dict[str, tuple[str, ...]] = {}


def covers(*lines: str) -> Callable[[Test], Test]:
    """``lines``: those of the documents that the test types, each at least once."""

    def note(test: Test) -> Test:
        TYPED_BY[test.__name__] = lines
        return test

    return note


class SandboxTerminal:
    """Where a person types: in a checkout, beside a sandbox that LINE has started. Its nodes read none of what other
    tests write to this machine's kernel log."""

    def __init__(self, line: str, checkout: Path, binaries: Path) -> None:
        self.checkout, self._line = checkout, line
        checkout.mkdir()
        (checkout / ".venv").symlink_to(sys.prefix)
        shutil.copytree(REPOSITORY / "examples", checkout / "examples")
        command: Sequence[str] = make_command(shlex.join(CommandRunner({line}, {}, {}).words(line)))
        place = checkout.parent
        command = with_own_kernel_log(command, place / "kernel.log")
        self._sandbox = start_sandbox(place / "box", binaries, command=command, checkout=checkout)

    def __enter__(self) -> "SandboxTerminal":
        self.box: RunningSandbox = self._sandbox.__enter__()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "KUBE"))}
        self.environment = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an activated environment
            "KUBECONFIG": str(self.box.kubeconfig),
            "MUSTER_SANDBOX": str(self.box.folder),
        }
        self.agent = self._said(r"--url (http://127\.0\.0\.1:\d+)")  # one of them, by its address
        self.page = self._said(r"page: (http://127\.0\.0\.1:\d+)/")
        self.places = PLACES | {"PORT": self.agent.rpartition(":")[2]}
        return self

    def __exit__(self, *error: Any) -> None:
        self._sandbox.__exit__(*error)

    def out(self) -> str:
        """What the sandbox has printed."""
        return self.box.folder.with_name("box.out").read_text()

    def _said(self, pattern: str) -> str:
        self.box.until(lambda: bool(re.search(pattern, self.out())), pattern)
        found = re.search(pattern, self.out())
        assert found
        return found[1]

    @contextlib.contextmanager
    def at(self, test: str) -> Iterator["SandboxTerminal"]:
        """For one test, which has typed all of its lines when it ends; no node is tainted then."""
        self._typist = CommandRunner(set(TYPED_BY[test]), {}, {})
        self._typist.left.discard(self._line)
        yield self
        if any(node["spec"].get("taints") for node in self.box.admin.get(NODES)["items"]):
            self.box.muster("release", "--all", "--yes")
        assert not self._typist.left, "its lines, and not typed"

    def words(self, line: str, **places: str) -> list[str]:
        self._typist.names = self.places | {name.replace("_", "-"): value for name, value in places.items()}
        self._typist.left.discard(line)
        return self._typist.words(line)

    def type(self, line: str, *more: str, code: int = 0, answer: str = "", **places: str) -> str:
        """What was printed. more: flags besides; code: its exit; answer: what a person says on the terminal."""
        words = [*self.words(line, **places), *more]
        with contextlib.ExitStack() as stack:
            stdin: int = subprocess.DEVNULL
            if answer:
                ours, stdin = pty.openpty()
                stack.callback(os.close, ours)
                stack.callback(os.close, stdin)
                os.write(ours, f"{answer}\n".encode())
            done = subprocess.run(
                words, cwd=self.checkout, env=self.environment, stdin=stdin,
                capture_output=True, text=True, timeout=CHANGE_LIMIT_S, check=False,
            )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def type_if_known(self, line: str, flag: str, **places: str) -> str | None:
        """What was printed; None if this machine's kubectl is too old for ``flag``."""
        done = subprocess.run(
            self.words(line, **places), cwd=self.checkout, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=CHANGE_LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode and f"unknown flag: {flag}" in done.stderr:
            return None
        assert done.returncode == 0, done
        return done.stdout

    def shows(self, line: str, pattern: str, **places: str) -> str:
        """Typed again and again until it prints that."""
        printed = ""

        def found() -> bool:
            nonlocal printed
            printed = self.type(line, **places)
            return re.search(pattern, printed, re.MULTILINE) is not None

        self.box.until(found, f"{line} prints {pattern}")
        return printed

    @contextlib.contextmanager
    def up(self, line: str, *more: str, settings: dict[str, str], **places: str) -> Iterator["StartedPart"]:
        """A part of Muster's that goes on running; settings: in its environment."""
        words = [*self.words(line, **places), *more]
        prefix = "MUSTER_" + words[1].replace("-", "_").upper() + "_"
        own = {"HOST": "127.0.0.1", "PORT": "0"} | settings
        environment = self.environment | {prefix + name if name != "PATH" else name: own[name] for name in own}
        terminal = Terminal(words, self.checkout, environment, self.checkout / f"{words[1]}.txt")
        try:
            part = StartedPart(terminal, self.box)
            part.address()
            yield part
            terminal.interrupt()
        finally:
            terminal.close()

    def tainted(self, node: str, line: str = XID_79) -> None:
        self.inject(node, line)
        self.box.until(lambda: self.box.taints(node) == [FAULTY], f"{node} is tainted")

    def inject(self, node: str, line: str = XID_79) -> None:
        """As `muster sandbox inject` does."""
        inject_line(find_running(self.box.folder).node(node), line)

    def faults(self, node: str) -> list[tuple[str, str]]:
        """Check and component of the open ones."""
        notes = json.loads(self.box.node(node)["metadata"].get("annotations", {}).get("muster.dev/faults", "{}"))
        return [(each["check"], each["component"]) for each in notes.get("open", [])]

    @contextlib.contextmanager
    def ninth(self, name: str) -> Iterator[None]:
        """A node that no agent of the sandbox's is on."""
        self.box.admin.create(NODES, node_object(name, shape=NodeShape(gpus=0)))
        try:
            self.box.until(lambda: self.box.admin.exists(f"{HEALTHS}/{name}"), "the tainter makes its NodeHealth")
            yield
        finally:
            self.box.admin.delete(f"{NODES}/{name}")


class StartedPart:
    def __init__(self, terminal: Terminal, box: RunningSandbox) -> None:
        self.terminal, self._box = terminal, box

    def address(self, what: str = "listening") -> str:
        """Once it has said so."""

        def said() -> list[str]:
            self.terminal.require_alive()
            return re.findall(rf"^{what} on (\S+)\n", self.terminal.text, re.MULTILINE)

        self._box.until(lambda: bool(said()), what)
        return said()[0]

    def get(self, path: str) -> str:
        return http_request(f"http://{self.address()}{path}")


def http_request(url: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - on loopback
    with urllib.request.urlopen(request, context=ssl._create_unverified_context()) as answer:  # noqa: S310, S323
        return str(answer.read().decode())
