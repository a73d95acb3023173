"""The tainter's world: two leaders, a person, faults, a kubelet, others who taint, and an API server that fails.

Agents are played by ``outside`` here: they write what :mod:`tests.explore.tainter.agent_world` has the real one write.
"""

from collections.abc import Iterable

import msgspec
from tests.explore.api_server import NODEHEALTHS, NODES, ApiServer, Json, Request, edit, make_server, split
from tests.explore.cluster_world import ClusterWorld, Link, State
from tests.explore.explorer import Step
from tests.explore.process import Input, Machine, View
from tests.explore.tainter.invariants import decode_node, foreign_taints, our_taints, wrong_node
from tests.explore.tainter.leader import NOON, Leader
from tests.explore.tainter.objects import (
    COMPONENT,
    EDITS,
    FOREIGN,
    add_other,
    finding,
    node_object,
    status_object,
)
from tests.explore.tainter.person import Person
from tests.explore.tainter.state import Outside, Scope, Truth

from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339
from muster_tainter.policy.file import parse_policy

# between two events outside: more than the second within which an agent without its state takes two lines for one
TICK_S = 10.0
LONG_S = 3600.0  # how long the world waits for the end of doubts about a lost write


class TainterWorld(ClusterWorld):
    """See :class:`tests.explore.cluster_world.ClusterWorld`. Steps of its own, by name: ``fire NODE``, ``reboot NODE``,
    ``driver NODE``, ``clear NODE``, ``edit KIND NODE``, ``depose``, ``elect P``, ``stop P``, ``clock SECONDS``,
    ``wait``."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.policy = parse_policy(scope.policy.replace("BUDGET", str(scope.budget)))
        leaders = Machine(lambda: Leader(self.policy))
        people = [("ada", Machine(Person))] if scope.clears else []
        self.leaders = tuple("AB"[: scope.leaders])
        super().__init__([*((name, leaders) for name in self.leaders), *people, *self.more_machines()])
        self._judged: dict[tuple[bytes, Truth, bool], str] = {}

    def more_machines(self) -> list[tuple[str, Machine]]:
        return []

    def objects(self) -> dict[str, Json]:
        objects: dict[str, Json] = {}
        for name in self.scope.nodes:
            objects[f"{NODES}/{name}"] = node_object(name, FOREIGN)
            status = status_object(finding(1), last=1) if name in self.scope.failing else status_object()
            if name in self.scope.other:
                add_other(status)
            objects[f"{NODEHEALTHS}/{name}"] = {"metadata": {"name": name}, "status": status}
        return objects

    def truth(self, name: str) -> Truth:
        failing = name in self.scope.failing
        return Truth(int(failing), failing, other=name in self.scope.other, foreign=(FOREIGN["key"],))

    def first_state(self) -> State:
        """All replicas have listed everything; A leads and has not decided anything."""
        scope = self.scope
        counts = {name: getattr(scope, name) for name in Outside._fields if hasattr(scope, name)}
        truth = tuple((name, self.truth(name)) for name in scope.nodes)
        outside = Outside(**counts, leader=-1, clock=(NOON, 0.0), truth=truth)
        processes = tuple(machine.start(*self.first_inputs(name)) for name, machine in
                          zip(self.names, self.machines, strict=True))  # fmt: skip
        links = tuple(Link((), (None,) * len(machine.views[number].requests))
                      for machine, number in zip(self.machines, processes, strict=True))  # fmt: skip
        state = State(make_server(self.objects()), processes, links, (), outside)
        while (step := self._start_step(state)) is not None:
            state = self.step(state, step)
        return self.step(state, Step(("elect", "A"), frozenset()))

    def first_inputs(self, name: str) -> tuple[Input, ...]:
        return ()

    def _start_step(self, state: State) -> Step | None:
        for at in range(len(self.names)):
            for step in self._steps_of(state, at):
                if step.what[1] in ("serve", "answer"):
                    return step
        return None

    # what happens outside

    def pauses_end(self, name: str, view: View) -> bool:
        """A replica that may not write any more fails again and again until its tasks are stopped."""
        if name not in self.leaders:
            return True
        may_write, leading, _ = view.shown
        return bool(may_write or not leading)

    def allows(self, outside: Outside, kind: str, name: str) -> bool:
        return bool(getattr(outside, kind)) and (name in self.leaders or kind == "lose")

    def spend(self, outside: Outside, kind: str, name: str) -> Outside:
        outside = outside._replace(**{kind: getattr(outside, kind) - 1})
        if kind == "crash" and name in self.leaders and outside.leader == self.leaders.index(name):
            outside = outside._replace(leader=-1)
        return outside

    def restart(self, state: State, name: str) -> int:
        first = () if state.outside.clock == (NOON, 0.0) else (Input("clock", None, state.outside.clock),)
        return self.machines[self.names.index(name)].start(*first)

    def outside_steps(self, state: State) -> Iterable[Step]:
        outside: Outside = state.outside
        touches = frozenset({"outside", "server"})
        for name, truth in outside.truth:
            if outside.fires and not truth.wanted and self.plays_agent(name):
                yield Step(("fire", name), touches)
            if outside.reboots and not truth.wanted and self.plays_agent(name):
                yield Step(("reboot", name), touches)
            if outside.drivers and truth.wanted and self.plays_agent(name):
                yield Step(("driver", name), touches)
        if outside.clears and not self.view(state, "ada").requests:
            for name in self.scope.nodes:
                yield Step(("clear", name), frozenset({"outside", "ada"}))
        for kind, name in dict.fromkeys(outside.edits):
            yield Step(("edit", kind, name), touches)
        yield from self._leadership(state)
        for seconds in dict.fromkeys(outside.clocks):
            yield Step(("clock", seconds), frozenset({"outside", *self.names}))

    def plays_agent(self, name: str) -> bool:
        """Whether no explored agent reports for the node."""
        return True

    def _leadership(self, state: State) -> Iterable[Step]:
        outside: Outside = state.outside
        if outside.leader >= 0 and outside.handovers:
            yield Step(("depose",), frozenset({"outside", self.leaders[outside.leader]}))
        for name in self.leaders:
            may_write, leading, _ = self.view(state, name).shown
            if leading and not may_write:
                yield Step(("stop", name), frozenset({name}))
            if not leading and outside.leader < 0 and (self.scope.late or not self._writing(state)):
                yield Step(("elect", name), frozenset({"outside", "late", *self.leaders}))

    def _writing(self, state: State) -> bool:
        """Whether a former leader has a write on its way."""
        return any(
            request.writes and answer is None
            for name in self.leaders
            for request, answer in zip(
                self.view(state, name).requests, state.links[self.names.index(name)].answers, strict=True
            )
        )

    def calm_outside(self, state: State) -> Step | None:
        for step in self._leadership(state):
            if step.what[0] != "depose":
                return step
        return None

    def calm_wait(self, state: State) -> Step | None:
        if any(self.view(state, name).shown[2] for name in self.leaders):
            return Step(("wait",), frozenset({"outside", *self.names}))
        return None

    def outside_apply(self, state: State, step: Step) -> State:
        outside: Outside = state.outside
        kind, *more = step.what
        match kind:
            case "fire" | "reboot" | "driver":
                return self._report(state, str(kind), str(more[0]))
            case "clear":
                state = state._replace(outside=outside._replace(clears=outside.clears - 1, tick=outside.tick + 1))
                at = TICK_S * (outside.tick + 1)
                return self.feed(state, self.names.index("ada"), Input("clear", None, (more[0], at)))
            case "edit":
                return self._edit(state, str(more[0]), str(more[1]))
            case "depose":
                state = state._replace(outside=outside._replace(leader=-1, handovers=outside.handovers - 1))
                return self.feed(state, outside.leader, Input("deposed"))
            case "stop":
                return self.feed(state, self.names.index(str(more[0])), Input("stopped"))
            case "elect":
                at = self.names.index(str(more[0]))
                late = (
                    state.late if self.scope.late else tuple(each for each in state.late if each.by not in self.leaders)
                )
                return self.feed(state._replace(outside=outside._replace(leader=at), late=late), at, Input("elected"))
            case "clock":
                clocks = list(outside.clocks)
                clocks.remove(float(more[0]))
                return self._set_clock(
                    state._replace(outside=outside._replace(clocks=tuple(clocks))), float(more[0]), 0.0
                )
            case _:
                return self._set_clock(state, LONG_S, LONG_S)

    def _set_clock(self, state: State, wall_s: float, steady_s: float) -> State:
        wall, steady = state.outside.clock
        clock = (wall + wall_s, steady + steady_s)
        state = state._replace(outside=state.outside._replace(clock=clock))
        for name in self.leaders:
            state = self.feed(state, self.names.index(name), Input("clock", None, clock))
        return state

    def _report(self, state: State, kind: str, name: str) -> State:
        """The agent of a node reports that it fired, in this boot or a new one, or that the driver says it is over."""
        outside: Outside = state.outside
        truth = dict(outside.truth)[name]
        fires = kind != "driver"
        boot = (state.server.get(f"{NODEHEALTHS}/{name}") or {})["status"]["bootID"] + "+" * (kind == "reboot")
        number = truth.number + 1 if fires else truth.number
        over = {"component": COMPONENT, "reason": "Xid79", "occurrence": number, "how": "driver", "at": rfc3339(NOON)}
        found, cleared = ((finding(number),), ()) if fires else ((), (over,))
        status = status_object(*found, cleared=cleared, last=number, boot=boot)
        if truth.other:
            add_other(status)
        server, events = edit(state.server, f"{NODEHEALTHS}/{name}", lambda body: body.update(status=status), "agent")
        outside = outside._replace(**{f"{kind}s": getattr(outside, f"{kind}s") - 1})
        state = state._replace(server=server, outside=outside)
        truth = truth._replace(number=number, wanted=fires, cleared=False if fires else truth.cleared)
        return self.publish(self.with_truth(state, name, truth), events)

    def _edit(self, state: State, kind: str, name: str) -> State:
        outside: Outside = state.outside
        edits = list(outside.edits)
        edits.remove((kind, name))
        by, change = EDITS[kind]
        before = self.node(state.server, name)
        path = f"{NODEHEALTHS}/{name}" if kind == "far" else f"{NODES}/{name}"
        server, events = edit(state.server, path, change, by)
        state = state._replace(server=server, outside=outside._replace(edits=tuple(edits)))
        after = self.node(server, name)
        truth = dict(outside.truth)[name]._replace(foreign=foreign_taints(after))
        if kind == "untaint" and before.spec.taints != after.spec.taints:
            truth = truth._replace(wanted=False)  # it may be closed, or set again if nobody saw who removed it
        return self.publish(self.with_truth(state, name, truth), events)

    @staticmethod
    def with_truth(state: State, name: str, truth: Truth) -> State:
        known = dict(state.outside.truth)
        return state._replace(outside=state.outside._replace(truth=tuple({**known, name: truth}.items())))

    def served(self, before: State, request: Request, status: int, after: State) -> State:
        if request.by != "ada" or not request.writes or status >= 300:
            return after
        _, name, _ = split(request.path)
        for entry in msgspec.json.decode(request.body)["spec"]["clear"]:
            after = self.cleared(after, name, entry)
        return after

    def noticed(self, request: Request) -> tuple[str, ...]:
        return ("outside", "G") if request.by == "ada" and request.writes else ()

    def cleared(self, state: State, name: str, entry: Json) -> State:
        """An entry of spec.clear was written."""
        truth = dict(state.outside.truth)[name]
        if entry["occurrence"] >= truth.number:
            truth = truth._replace(wanted=False, cleared=True)
        return self.with_truth(state, name, truth)

    # what must hold

    @staticmethod
    def node(server: ApiServer, name: str) -> Node:
        return decode_node(server.raw(f"{NODES}/{name}") or b"{}")

    def wrong_step(self, before: State, step: Step, after: State) -> str:
        if len(step.what) == 3 and step.what[1] == "gone":
            requests = self.view(after, str(step.what[0])).requests
            if not any(request.method == "GET" and request.path == step.what[2] for request in requests):
                return f"{step.what[0]} does not list at once after 410"
        if before.server is after.server or step.what[0] == "edit":
            return ""
        for name, truth in after.outside.truth:
            if foreign_taints(self.node(after.server, name)) != truth.foreign:
                return f"{name}: a taint of others was touched"
        tainted = self.tainted(after.server)
        if len(tainted) > self.scope.budget and len(tainted) > len(self.tainted(before.server)):
            return f"above budget: {', '.join(tainted)} are tainted"
        return ""

    def tainted(self, server: ApiServer) -> list[str]:
        return [name for name in self.scope.nodes if our_taints(self.node(server, name))]

    def wrong_at_rest(self, state: State) -> str:
        full = len(self.tainted(state.server)) >= self.scope.budget
        for name, truth in state.outside.truth:
            raw = state.server.raw(f"{NODES}/{name}") or b"{}"
            wrong = self._judged.get((raw, truth, full))
            if wrong is None:
                wrong = self._judged[raw, truth, full] = wrong_node(
                    decode_node(raw), truth, self.policy, state.outside.clock[0], full=full
                )
            if wrong:
                return f"{name}: at rest, {wrong}"
        return ""
