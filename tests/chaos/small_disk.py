"""A disk of a few megabytes for one part: a tmpfs in a mount namespace of its own, which ends with its holder."""

import subprocess
from contextlib import suppress
from pathlib import Path

from muster_sandbox.processes import ManagedProcess, ProcessReaper, wait_for

SIZE = "2m"
FILLER = "filler"
_HOLD = f'mount -t tmpfs -o size={SIZE} chaos "$0" && touch "$0/mounted" && exec sleep infinity'
_BLOCK = b"\0" * 4096


class SmallDisk:
    """folder: where it is, for processes whose command line begins with :attr:`enter`."""

    def __init__(self, folder: Path, reaper: ProcessReaper) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _HOLD, str(folder)]
        self._holder = ManagedProcess("disk", command, folder.with_suffix(".log"), reaper)

    def start(self) -> None:
        self._holder.start()
        wait_for((self._here / "mounted").exists, alive=[self._holder], timeout_s=30.0, what="a mounted tmpfs")

    def stop(self) -> None:
        self._holder.kill()

    @property
    def enter(self) -> list[str]:
        return ["nsenter", f"--target={self._holder.pid}", "--mount"]

    @property
    def _here(self) -> Path:
        """The same folder as this process sees it."""
        return Path(f"/proc/{self._holder.pid}/root{self.folder}")

    def fill(self) -> None:
        """To the last byte."""
        with (self._here / FILLER).open("wb", buffering=0) as opened, suppress(OSError):
            while opened.write(_BLOCK):
                pass

    def free(self) -> None:
        (self._here / FILLER).unlink(missing_ok=True)

    def set_read_only(self, on: bool) -> bool:
        """Whether it could: not while a process has a file open for writing there."""
        option = f"remount,{'ro' if on else 'rw'}"
        command = [*self.enter, "mount", "-o", option, str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
