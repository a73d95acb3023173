"""What is explored of the tainter: small worlds, each about one kind of trouble, and one with all of it."""

from collections.abc import Callable, Mapping
from functools import partial

from tests.explore.tainter.agent_world import AgentWorld
from tests.explore.tainter.state import WAITS, Scope
from tests.explore.tainter.world import TainterWorld

ONE = ("n1",)
BOTH = ("n1", "n2")

SCOPES: Mapping[str, Callable[[], TainterWorld]] = {
    # leadership changes hands, in order or by a crash, with room for one of two nodes
    "takeover": partial(TainterWorld, Scope(failing=BOTH, budget=1, handovers=1, crash=1, lose=1)),
    "late-write": partial(TainterWorld, Scope(failing=BOTH, budget=1, handovers=1, crash=1, late=True)),
    # a replica that starts lists from a cache that is behind
    "old-list": partial(TainterWorld, Scope(failing=BOTH, budget=1, fires=1, handovers=1, crash=1, old=2)),
    # a new leader has not seen why its predecessor opened a fault
    "behind": partial(TainterWorld, Scope(nodes=ONE, fires=1, reboots=1, handovers=1)),
    "behind-unconfirmed": partial(TainterWorld, Scope(nodes=ONE, fires=1, drivers=1, handovers=1, policy=WAITS)),
    # watches and answers fail while a second node fails
    "outage": partial(TainterWorld, Scope(failing=ONE, budget=1, fires=1, lose=1, gone=1, close=1)),
    # people and others write the same objects
    "people": partial(TainterWorld, Scope(failing=ONE, fires=1, clears=1, edits=(("untaint", "n1"),))),
    "others": partial(
        TainterWorld, Scope(failing=ONE, leaders=1, fires=1, drivers=1, edits=(("overwrite", "n1"), ("taint", "n2")))
    ),
    "kubelet": partial(
        TainterWorld, Scope(failing=ONE, fires=1, handovers=1, edits=(("forge", "n1"), ("own", "n1"), ("far", "n2")))
    ),
    "flapping": partial(TainterWorld, Scope(other=ONE, fires=2, drivers=2, budget=1, gone=1)),
    "clock": partial(TainterWorld, Scope(failing=ONE, budget=1, fires=1, lose=1, clocks=(3600.0, -7200.0))),
    # the agent: its log, its disk, its publisher
    "clear": partial(AgentWorld, Scope(nodes=ONE, leaders=1, clears=1, crash=1), lines=2),
    "agent-outage": partial(AgentWorld, Scope(nodes=ONE, leaders=1, lose=1, gone=1, close=1, crash=1), lines=2),
    "agent-takeover": partial(AgentWorld, Scope(nodes=ONE, handovers=1, close=1), lines=2),
    "agent-old-list": partial(AgentWorld, Scope(nodes=ONE, leaders=1, clears=1, crash=2, old=1), lines=2),
    "everything": partial(
        AgentWorld,
        Scope(
            budget=1, fires=1, drivers=1, clears=1, handovers=1, lose=1, gone=1, crash=1, clocks=(3600.0,),
            edits=(("own", "n2"), ("untaint", "n1")),
        ),
        lines=2,
    ),
}  # fmt: skip
