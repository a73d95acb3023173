"""Peers that nobody has to write down: whoever knows the fleet says who they are."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from muster_checks.base.declaration import NodeView


class Neighbours(Protocol):
    """Knows other nodes by name, with their addresses; maybe not all of them, and maybe not the newest."""

    async def known(self) -> Mapping[str, str]:
        """Raises CannotTell."""
        ...  # pragma: no cover - the interface

    async def confirmed(self, silent: Collection[str]) -> Mapping[str, str]:
        """The same after ``silent`` have been looked up again: who is not there any more has gone, or is known to be
        down. Never raises."""
        ...  # pragma: no cover - the interface


@dataclass(frozen=True)
class NodeAmongOthers(NodeView):
    """A node in a fleet."""

    neighbours: Neighbours | None = None
