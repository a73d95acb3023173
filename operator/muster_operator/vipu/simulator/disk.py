"""Saves the simulator's state in one JSON file that is replaced atomically, so a kill leaves either the old or the new
state.

The state survives a kill, but not a power failure, because the file is not synced.
"""

import fcntl
import os
from pathlib import Path

import msgspec

from muster_operator.vipu.simulator.fleet import SimulatedFleet

FILE_NAME = "vipu.json"
LOCK_NAME = "vipu.lock"
SIZE_LIMIT = 64 << 20  # bytes; the simulator never writes more


class StateError(Exception):
    """The directory cannot be used, or its content is not a simulator's state."""


class StateFolder:
    """Locked during the lifetime of this object: two simulators of one fleet would allocate the same IPUs. Raises
    StateError."""

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
        """None if there is no state yet. Raises StateError."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(SIZE_LIMIT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self._path}: cannot read it: {error.strerror}") from error
        if len(raw) > SIZE_LIMIT:
            raise StateError(f"{self._path}: larger than {SIZE_LIMIT} bytes")
        try:
            return msgspec.json.decode(raw, type=SimulatedFleet)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StateError(
                f"{self._path}: not a simulator's state: {error}; remove the file to start anew"
            ) from error

    def keep(self, fleet: SimulatedFleet) -> None:
        """Raises OSError; the old state is then kept."""
        self._fresh.write_bytes(msgspec.json.encode(fleet))
        self._fresh.replace(self._path)

    def close(self) -> None:
        os.close(self._lock)
