"""The first hop of a canary, where a person allows it: a line in /dev/kmsg that the check dmesg has to read.

The line comes from user space, so no rule can take it for one of a driver, and the check does not judge it. Each line
has a new random number, so that nobody can write it in advance.
"""

import asyncio
import logging
import os
import secrets

log = logging.getLogger(__name__)

PREFIX = "muster-canary: "
PRIORITY = 15  # facility user, level debug: on no console
PATIENCE_S = 10.0  # an idle agent reads a line within a millisecond, one in a flood within 0.3 s


class KernelLogEcho:
    """writer: an open descriptor of /dev/kmsg. Nobody else writes with it."""

    def __init__(self, writer: int, *, patience_s: float = PATIENCE_S) -> None:
        self._writer = writer
        self._patience_s = patience_s
        self._awaited = b""  # the line under way; empty without one
        self._read = asyncio.Event()

    def may_be_in(self, text: bytes) -> bool:
        """Whether ``text``, of one line or several, contains the line under way."""
        return bool(self._awaited) and self._awaited in text

    def take(self, line: str) -> bool:
        """Whether ``line`` is a canary's, and so nothing to judge."""
        if not self._awaited or line.encode() != self._awaited:
            return False
        self._read.set()
        return True

    async def is_read(self) -> bool:
        """Write a line; whether the check dmesg has read it in time. One call at a time."""
        self._read.clear()
        self._awaited = f"{PREFIX}{secrets.token_hex(8)}".encode()
        try:
            os.write(self._writer, b"<%d>%s\n" % (PRIORITY, self._awaited))
            async with asyncio.timeout(self._patience_s):
                await self._read.wait()
        except OSError as error:  # also TimeoutError
            reason = error.strerror or f"the agent has not read it within {self._patience_s:g} s"
            log.warning("canary: a line in the kernel log: %s", reason)
            return False
        finally:
            self._awaited = b""
        return True
