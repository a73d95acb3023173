"""What follows a taint: the node is drained and repaired, IPUs are quarantined. Behind the taints, while leading."""

import asyncio
import time
from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Node
from muster_tainter.faults.desired_state import Notice
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.evictor import Evictor
from muster_tainter.repair.quarantine_writer import QuarantineWriter
from muster_tainter.repair.repair_executor import RepairExecutor


class Aftercare:
    """namespace: of the ConfigMap, and of Jobs whose template names none; the rest as its parts have it."""

    def __init__(
        self,
        client: KubeClient,
        policy: Callable[[], Policy],
        registry: CollectorRegistry,
        *,
        namespace: str,
        node: Callable[[str], Node | None],
        names: Callable[[], Collection[str]],
        withheld: Callable[[], str],
        observe: Callable[[Node], None],
        tell: Callable[[Node, Notice], None],
        may_write: Callable[[], bool],
        idle: asyncio.Event,
        dry_run: bool = False,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._evictor = Evictor(
            client,
            policy,
            registry,
            node=node,
            names=names,
            withheld=withheld,
            tell=tell,
            may_write=may_write,
            idle=idle,
            dry_run=dry_run,
            now=now,
            clock=clock,
        )
        self._repairer = RepairExecutor(
            client,
            policy,
            registry,
            namespace=namespace,
            node=node,
            names=names,
            empty=self._evictor,
            withheld=withheld,
            observe=observe,
            tell=tell,
            may_write=may_write,
            idle=idle,
            dry_run=dry_run,
            now=now,
            clock=clock,
        )
        self._evictor.on_empty = self._repairer.note
        self._quarantining = QuarantineWriter(
            client,
            policy,
            registry,
            namespace=namespace,
            node=node,
            names=names,
            withheld=withheld,
            tell=tell,
            may_write=may_write,
            idle=idle,
            dry_run=dry_run,
            now=now,
        )

    def note(self, name: str) -> None:
        """What the Node carries has changed."""
        self._evictor.note(name)
        self._repairer.note(name)
        self._quarantining.note(name)

    def note_pods(self, name: str) -> None:
        """Perhaps what runs there has."""
        self._evictor.note(name)

    def look_at_all(self) -> None:
        """The policy may be another one, or what withholds has changed."""
        self._evictor.look_at_all()
        self._repairer.look_at_all()
        self._quarantining.look_at_all()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._evictor.run())
            group.create_task(self._repairer.run())
            group.create_task(self._quarantining.run())
