"""A person who clears faults from the fleet page, as an explored process: read the Node, read its NodeHealth, write."""

from typing import Any

from tests.explore.leader import NOON
from tests.explore.memory import MemoryReader
from tests.explore.process import Process

from muster_kube.api.client import KubeClient
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
        self.tasks[:] = [self.loop.create_task(handler._write(ClearRequest(node=node), "ada"))]

    def roots(self) -> tuple[object, ...]:
        return ()
