"""A person who clears faults from the fleet page, as an explored process: read the Node, read its NodeHealth, write."""

from contextlib import suppress
from typing import Any

from tests.explore.memory import MemoryReader
from tests.explore.process import Process
from tests.explore.tainter.leader import NOON

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError
from muster_tainter.page.clear import ClearHandler, ClearRequest


class Person(Process):
    """Input of its own: ``clear`` (value: the node, and the seconds after NOON at which it is written)."""

    reader = MemoryReader(KubeClient, Process)

    def start(self) -> None:
        pass

    def do(self, name: str, value: Any) -> None:
        assert name == "clear", name
        node, at = value
        handler = ClearHandler(self.client, None, now=lambda: NOON + at)  # type: ignore[arg-type]  # no review is asked
        self.loop.create_task(_clear(handler, node))

    def roots(self) -> tuple[object, ...]:
        return ()


async def _clear(handler: ClearHandler, node: str) -> None:
    with suppress(ApiError):  # then ada sees that it failed
        await handler._write(ClearRequest(node=node), "ada")
