"""Whether work runs on the node's accelerators, which a heavy check must not disturb."""

from typing import Protocol

import msgspec


class RunScope(msgspec.Struct, frozen=True):
    """What a heavy check uses, and what does not count as work meanwhile.

    beside:  devices of pods whose ``namespace/name`` begins with this do not count; empty: those of all pods do
    device:  PCI address of the only device that it uses: work on others does not count; empty: it uses all
    held_as: :func:`muster_kube.nodehealth.device_digest` of the names under which ResourceClaims allocate this device,
             or parts of it
    """

    beside: str = ""
    device: str = ""
    held_as: tuple[str, ...] = ()


WHOLE_NODE = RunScope()


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

    async def find_work(self, scope: RunScope = WHOLE_NODE, /) -> str:
        """Look now and return :attr:`busy`, as far as it concerns ``scope``. Never raises; bounded in time."""
        ...

    async def find_foreign_work(self, scope: RunScope = WHOLE_NODE, /) -> str:
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

    async def find_work(self, _scope: RunScope = WHOLE_NODE, /) -> str:
        return self.busy

    async def find_foreign_work(self, _scope: RunScope = WHOLE_NODE, /) -> str:
        return self.busy

    async def run(self) -> None:
        import asyncio

        await asyncio.Event().wait()
