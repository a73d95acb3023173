"""The tainter's world with a real agent G on node n1, its kernel log and its disk.

Further steps, by name: ``line`` (the driver writes a fatal line), ``(G, read)`` the agent reads the next one,
``(G, save)`` its state gets to the disk. A crash of G starts it again with what is on the disk.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.explore.api_server import NODEHEALTHS, Event, Json
from tests.explore.cluster_world import State
from tests.explore.explorer import Step, settle
from tests.explore.process import Input, Machine
from tests.explore.tainter.agent import ExploredAgent
from tests.explore.tainter.leader import NOON
from tests.explore.tainter.objects import FOREIGN
from tests.explore.tainter.state import Outside, Scope, Truth
from tests.explore.tainter.world import TICK_S, TainterWorld

from muster_kube.api.times import seconds

WATCHED = "n1"


class Node1(NamedTuple):
    """lines: times of the lines in the kernel log; disk: the agent's state; left: how many may still be written"""

    lines: tuple[float, ...] = ()
    disk: bytes = b""
    left: int = 0


class AgentWorld(TainterWorld):
    """lines: how many may be written. known: how many were written, read and published before anything else."""

    def __init__(self, scope: Scope, lines: int = 1, known: int = 0) -> None:
        self._lines, self._known = lines, known
        super().__init__(scope)

    def more_machines(self) -> list[tuple[str, Machine]]:
        return [("G", Machine(lambda: ExploredAgent(WATCHED)))]

    def first_inputs(self, name: str) -> tuple[Input, ...]:
        return (Input("boot", None, (b"", 0)),) if name == "G" else ()

    def objects(self) -> dict[str, Json]:
        """The tainter has just made the NodeHealth of n1."""
        objects = super().objects()
        objects[f"{NODEHEALTHS}/{WATCHED}"] = {"metadata": {"name": WATCHED, "uid": "health"}}
        return objects

    def first_state(self) -> State:
        state = super().first_state()
        state = state._replace(outside=state.outside._replace(own=Node1(left=self._lines + self._known)))
        for _ in range(self._known):
            packed, _ = settle(self, self.pack(self.outside_apply(state, Step(("line",), frozenset()))))
            state = self.unpack(packed)
        return state

    def truth(self, name: str) -> Truth:
        return super().truth(name) if name != WATCHED else Truth(foreign=(FOREIGN["key"],))

    def plays_agent(self, name: str) -> bool:
        return name != WATCHED

    def sees(self, name: str, event: Event) -> bool:
        return name != "G" or event.name == WATCHED

    def allows(self, outside: Outside, kind: str, name: str) -> bool:
        return bool(getattr(outside, kind)) and (name != "ada" or kind == "lose")

    def restart(self, state: State, name: str) -> int:
        if name != "G":
            return super().restart(state, name)
        own: Node1 = state.outside.own
        return self.machines[self.names.index("G")].start(Input("boot", None, (own.disk, len(own.lines))))

    def outside_steps(self, state: State) -> Iterable[Step]:
        yield from super().outside_steps(state)
        own: Node1 = state.outside.own
        if own.left:
            yield Step(("line",), frozenset({"outside"}))
        yield from self._of_agent(state)

    def _of_agent(self, state: State) -> Iterable[Step]:
        own: Node1 = state.outside.own
        position, stored = self.view(state, "G").shown
        if position < len(own.lines):
            yield Step(("G", "read"), frozenset({"outside", "G"}))
        if stored != own.disk:
            yield Step(("G", "save"), frozenset({"outside", "G"}))

    def calm_outside(self, state: State) -> Step | None:
        return next(iter(self._of_agent(state)), None) or super().calm_outside(state)

    def outside_apply(self, state: State, step: Step) -> State:
        outside: Outside = state.outside
        own: Node1 = outside.own
        match step.what:
            case ("line",):
                tick = outside.tick + 1
                own = own._replace(lines=(*own.lines, NOON + TICK_S * tick), left=own.left - 1)
                truth = dict(outside.truth)[WATCHED]
                state = state._replace(outside=outside._replace(own=own, tick=tick))
                return self.with_truth(state, WATCHED, truth._replace(number=1, wanted=True, cleared=False))
            case ("G", "read"):
                position = self.view(state, "G").shown[0]
                line = (position + 1, own.lines[position])
                return self.feed(state, self.names.index("G"), Input("line", None, line))
            case ("G", "save"):
                stored = self.view(state, "G").shown[1]
                return state._replace(outside=outside._replace(own=own._replace(disk=stored)))
        return super().outside_apply(state, step)

    def cleared(self, state: State, name: str, entry: Json) -> State:
        """What fired before the clear was written is closed, and what the person saw; what came later is not."""
        if name != WATCHED:
            return super().cleared(state, name, entry)
        own: Node1 = state.outside.own
        health = state.server.get(f"{NODEHEALTHS}/{name}") or {}
        reported = [each["lastSeen"] for check in health.get("status", {}).get("checks", ())
                    for each in check.get("findings", ())]  # fmt: skip
        given = max(seconds(entry["at"]), *map(seconds, reported), 0.0)
        truth = dict(state.outside.truth)[name]
        if own.lines and max(own.lines) <= given:
            # a line that the agent reads only after the clear may open a fault: nobody had seen it
            all_read = self.view(state, "G").shown[0] == len(own.lines)
            truth = truth._replace(wanted=False, cleared=all_read)
        return self.with_truth(state, name, truth)
