"""The folder of a sandbox, in which `muster sandbox inject` in another terminal finds the running sandbox.

Each user can run one sandbox at a time: the name of the folder contains the user ID. `sandbox.json` contains the
process ID of the sandbox.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

import msgspec
import psutil

OTHER_FOLDER = "set $MUSTER_SANDBOX to another folder"
MARKER = ".muster-sandbox"  # in every folder of a sandbox: folders without it are never deleted


class NoSandbox(Exception):
    """No sandbox runs, or another one already does; the message says what to do."""


class SandboxNode(msgspec.Struct, frozen=True):
    """kmsg: the kernel log that its agent reads (/dev/kmsg for this machine). root: its file system, or ``/``."""

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
        raise NoSandbox(f"unknown node {name!r}: the sandbox has {', '.join(n.name for n in self.nodes)}")


def sandbox_folder() -> Path:
    """``$MUSTER_SANDBOX``, else this user's folder in the temporary directory."""
    return Path(os.environ.get("MUSTER_SANDBOX") or Path(tempfile.gettempdir()) / f"muster-sandbox-{os.getuid()}")


class SandboxFolder:
    """The folder, locked while the sandbox runs, and deleted at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> "SandboxFolder":
        """Raises NoSandbox if a sandbox already runs, or if the folder is unusable."""
        lock_path = self.path.with_name(self.path.name + ".lock")
        try:
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = lock_path.open("a")
        except OSError as error:
            raise NoSandbox(f"cannot create {lock_path}: {error.strerror}: {OTHER_FOLDER}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise NoSandbox(f"a sandbox runs already in {self.path}: stop it with Ctrl-C in its terminal") from None
        try:
            self._make()
        except BaseException:
            self._release()
            raise
        return self

    def _make(self) -> None:
        """Create the folder with only the marker in it. Deletes the files of a killed sandbox, but no other files."""
        try:
            if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
                raise NoSandbox(f"{self.path} is not a folder: set $MUSTER_SANDBOX to another path")
            if self.path.exists() and any(self.path.iterdir()):
                if not (self.path / MARKER).exists():
                    raise NoSandbox(
                        f"{self.path} contains files that do not belong to a sandbox: remove it, or set "
                        "$MUSTER_SANDBOX to another folder"
                    )
                shutil.rmtree(self.path)
            self.path.mkdir(mode=0o700, exist_ok=True)
            (self.path / MARKER).touch()
        except OSError as error:
            raise NoSandbox(f"cannot create {self.path}: {error.strerror}: {OTHER_FOLDER}") from error

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
    """The running sandbox. Raises NoSandbox if there is none."""
    sandbox: SandboxRecord | None
    try:
        sandbox = msgspec.json.decode((path / "sandbox.json").read_bytes(), type=SandboxRecord)
    except FileNotFoundError:
        sandbox = None
    if sandbox is None or not psutil.pid_exists(sandbox.pid):
        raise NoSandbox("no sandbox is running: start one with `make sandbox` in another terminal")
    return sandbox
