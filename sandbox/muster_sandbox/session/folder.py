"""Where a running sandbox says what it is, so that `muster sandbox inject` in another terminal finds it.

One sandbox a user at a time: its folder is named for the user, and `sandbox.json` in it holds the pid that owns it.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

import msgspec
import psutil

MARKER = ".muster-sandbox"  # in every folder that a sandbox made: no other one is ever cleared away


class NoSandbox(Exception):
    """No sandbox runs, or another one does; the text says what to do."""


class SandboxNode(msgspec.Struct, frozen=True):
    """kmsg: the log that its agent reads (/dev/kmsg for this machine). root: its fake file system, or ``/``."""

    name: str
    kmsg: str
    root: str
    simulated: bool


class SandboxRecord(msgspec.Struct, frozen=True):
    pid: int
    kubeconfig: str
    nodes: tuple[SandboxNode, ...]

    def node(self, name: str) -> SandboxNode:
        for node in self.nodes:
            if node.name == name:
                return node
        raise NoSandbox(f"no node {name!r} in the sandbox; there are: {', '.join(n.name for n in self.nodes)}")


def sandbox_folder() -> Path:
    """``$MUSTER_SANDBOX``, else a folder of this user's in the temporary directory."""
    return Path(os.environ.get("MUSTER_SANDBOX") or Path(tempfile.gettempdir()) / f"muster-sandbox-{os.getuid()}")


class SandboxFolder:
    """The folder, held by a lock for as long as the sandbox runs; removed with everything in it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> "SandboxFolder":
        """Raises NoSandbox where one runs already, or where the folder cannot be a sandbox's."""
        lock_path = self.path.with_name(self.path.name + ".lock")
        try:
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = lock_path.open("a")
        except OSError as error:
            raise NoSandbox(f"{lock_path}: {error.strerror}; name another folder by $MUSTER_SANDBOX") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise NoSandbox(f"a sandbox runs already ({self.path}); end it with Ctrl-C in its terminal") from None
        try:
            self._make()
        except BaseException:
            self._release()
            raise
        return self

    def _make(self) -> None:
        """The folder, empty but for the mark; what a killed sandbox left in it goes, what anybody else has stays."""
        try:
            if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
                raise NoSandbox(f"{self.path} is no folder; name another one by $MUSTER_SANDBOX")
            if self.path.exists() and any(self.path.iterdir()):
                if not (self.path / MARKER).exists():
                    raise NoSandbox(
                        f"{self.path} holds files that no sandbox made: it is left as it is; remove it, or name "
                        "another folder by $MUSTER_SANDBOX"
                    )
                shutil.rmtree(self.path)
            self.path.mkdir(mode=0o700, exist_ok=True)
            (self.path / MARKER).touch()
        except OSError as error:
            raise NoSandbox(f"{self.path}: {error.strerror}; name another folder by $MUSTER_SANDBOX") from error

    def publish(self, sandbox: SandboxRecord) -> None:
        draft = self.path / "sandbox.json.new"
        draft.write_bytes(msgspec.json.encode(sandbox))
        draft.rename(self.path / "sandbox.json")

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()


def find_running(path: Path) -> SandboxRecord:
    """The sandbox that runs now. Raises NoSandbox where none does."""
    sandbox: SandboxRecord | None
    try:
        sandbox = msgspec.json.decode((path / "sandbox.json").read_bytes(), type=SandboxRecord)
    except FileNotFoundError:
        sandbox = None
    if sandbox is None or not psutil.pid_exists(sandbox.pid):
        raise NoSandbox("no sandbox is running: start one with `make sandbox` in another terminal")
    return sandbox
