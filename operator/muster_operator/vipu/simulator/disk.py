"""The simulator's memory: one JSON file that is replaced whole, so a kill at any point leaves the old one or the new.

Against a kill, not against a power cut: nothing is synced to the platter.
"""

import fcntl
import os
from pathlib import Path

import msgspec

from muster_operator.vipu.simulator.fleet import SimulatedFleet

FILE_NAME = "vipu.json"
LOCK_NAME = "vipu.lock"
SIZE_LIMIT = 64 << 20  # bytes; what is larger was not written by us


class StateError(Exception):
    """The folder cannot be used, or what is in it is not a simulator's state."""


class StateFolder:
    """Locked while this lives: two simulators of one fleet would give out the same IPUs. Raises StateError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._fresh = folder / f"{FILE_NAME}.new"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"--state {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateError(f"--state {folder}: in use by another simulator") from error

    def load(self) -> SimulatedFleet | None:
        """None where there is none yet. Raises StateError."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(SIZE_LIMIT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self._path}: cannot be read: {error.strerror}") from error
        if len(raw) > SIZE_LIMIT:
            raise StateError(f"{self._path}: more than {SIZE_LIMIT} bytes")
        try:
            return msgspec.json.decode(raw, type=SimulatedFleet)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StateError(f"{self._path}: no simulator's state: {error}; remove it to begin anew") from error

    def keep(self, fleet: SimulatedFleet) -> None:
        """Raises OSError; then the old one is still there."""
        self._fresh.write_bytes(msgspec.json.encode(fleet))
        self._fresh.replace(self._path)

    def close(self) -> None:
        os.close(self._lock)
