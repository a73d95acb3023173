"""Whether work runs on this node's accelerators: what a heavy check must not disturb."""

from typing import Protocol


class Occupancy(Protocol):
    """Ours to ask, its own to find out (idle_detector.py).

    ``on_change`` of whoever made it is called when the node has become idle or busy.
    """

    @property
    def idle_since(self) -> float | None:
        """Seconds since the epoch; None while in use, or while it cannot be told."""
        ...

    @property
    def busy(self) -> str:
        """Why it is not idle, for people (``pod team-a/train-0 holds nvidia.com/gpu``); empty while it is."""
        ...

    async def find_work(self, beside: str = "", /) -> str:
        """Look now; returns :attr:`busy`, or what it would be without the devices of pods whose ``namespace/name``
        begins with ``beside``. Never raises; bounded in time."""
        ...

    async def find_foreign_work(self, beside: str = "", /) -> str:
        """As ``find_work``, while a heavy check of ours runs: what it does itself is no work.

        Leaves idle_since alone.
        """
        ...

    async def run(self) -> None:
        """Keep looking, for ever."""
        ...


class AlwaysIdle:
    """A node on which nothing is looked for: always idle, since it was made."""

    def __init__(self, since: float = 0.0) -> None:
        self.idle_since: float | None = since
        self.busy = ""

    async def find_work(self, _beside: str = "", /) -> str:
        return self.busy

    async def find_foreign_work(self, _beside: str = "", /) -> str:
        return self.busy

    async def run(self) -> None:
        import asyncio

        await asyncio.Event().wait()
