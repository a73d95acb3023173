"""Whether work runs on the node's accelerators, which a heavy check must not disturb."""

from typing import Protocol


class Occupancy(Protocol):
    """Interface of the idle detector (idle_detector.py)."""

    @property
    def idle_since(self) -> float | None:
        """Seconds since the epoch; None while the node is busy or its state is unknown."""
        ...

    @property
    def busy(self) -> str:
        """Why the node is not idle, for people (``pod team-a/train-0 holds nvidia.com/gpu``); empty if it is idle."""
        ...

    async def find_work(self, beside: str = "", /) -> str:
        """Look now and return :attr:`busy`, ignoring devices of pods whose ``namespace/name`` begins with ``beside``
        (if not empty). Never raises; bounded in time."""
        ...

    async def find_foreign_work(self, beside: str = "", /) -> str:
        """Like ``find_work``, but while a heavy check runs: ignores the check itself. Does not change idle_since."""
        ...

    async def run(self) -> None:
        """Keep looking until cancelled."""
        ...


class AlwaysIdle:
    """For nodes without idle detection: idle since ``since``."""

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
