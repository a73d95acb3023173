"""Sources of the Authorization header.

Tokens in files rotate: the kubelet replaces a bound token well before it expires. Files are therefore read again at
most once a minute, and immediately after a 401.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from muster_kube.api.errors import ConfigError

REREAD_S = 60.0


class Credentials(Protocol):
    async def header(self) -> str | None:
        """The Authorization header to send now, or None for none."""

    def refused(self, header: str | None) -> bool:
        """The server returned 401 for ``header``. True: retry, the header may have changed."""


class NoToken:
    """No Authorization header: a client certificate authenticates the client, or the client is anonymous."""

    async def header(self) -> str | None:
        return None

    def refused(self, header: str | None) -> bool:  # noqa: ARG002 - part of the interface
        return False


class StaticToken:
    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    async def header(self) -> str | None:
        return self._header

    def refused(self, header: str | None) -> bool:  # noqa: ARG002 - part of the interface
        return False


class FileToken:
    """A bearer token in a file that another program rotates.

    Raises ConfigError if the file is unreadable or empty and no earlier token is known.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._header: str | None = None
        self._read_at = 0.0
        self._stale = False

    async def header(self) -> str:
        now = self._clock()
        if self._header is None or self._stale or now - self._read_at >= REREAD_S:
            self._header = self._read()
            self._read_at = now
            self._stale = False
        return self._header

    def refused(self, header: str | None) -> bool:
        """Concurrent calls may all be rejected with one old token: only the first rejection reads the file again."""
        if header == self._header:
            self._stale = True
        return True

    def _read(self) -> str:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._header is not None:  # during a rotation the old token may still be valid
                return self._header
            raise ConfigError(f"cannot read token file {self._path}: {error}") from error
        if not token:
            if self._header is not None:
                return self._header
            raise ConfigError(f"token file {self._path} is empty: expected a bearer token")
        return f"Bearer {token}"
