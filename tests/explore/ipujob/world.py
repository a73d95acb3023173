"""IPUJobs, two operators, the proxy and two V-IPU controllers: every step that one of them, or somebody else, can take.

A call is two steps: the server carries it out, and its answer arrives. Between the two anything may happen, so an
answer can be lost, or be late, or find its process dead. Lists that begin a watch and V-IPU's reads are answered at
once.

V-IPU and Kubernetes are values; operators and proxy are states of a :class:`~tests.explore.process.Machine`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tests.explore.api_server import GONE, Answer, Json, Request, failure
from tests.explore.explorer import Step
from tests.explore.ipujob import cluster as kube
from tests.explore.ipujob.cluster import Cluster, Key
from tests.explore.ipujob.invariants import at_rest, of_step
from tests.explore.ipujob.possible_steps import PROXY, SPACE, PossibleSteps
from tests.explore.ipujob.processes import VIPUS
from tests.explore.ipujob.state import (
    Answered,
    AtProxy,
    Late,
    Part,
    State,
    Waits,
    add_late,
    less,
    with_call,
    with_fleet,
    with_part,
)
from tests.explore.ipujob.vipu_calls import PASSING_S, call_vipu, end_passing
from tests.explore.process import Input

from muster_operator.job import names
from muster_operator.vipu.simulator.fleet import SimulatedFleet


class IPUJobWorld(PossibleSteps):
    """jobs: by name, the IPUJobs that are submitted. disturbances: what may happen, and how often, in any order:

    - ``crash PART``; ``depose``: another operator leads; ``split``: a second one leads beside the first; ``late``: what
      a process sent before it ended is carried out later
    - ``lose``: an answer of the API server or the proxy; ``refuse``: the API server answers 409 and has changed
      nothing; ``silent``: V-IPU does not answer, and has done it, does it later or never
    - ``cut``: a watch gets 410; ``stall PART PATH``: a watch delivers nothing until the others have done what they
      can; ``catch up``: one that stands still delivers all at once
    - ``scale JOB N``, ``suspend JOB``, ``resume JOB``, ``delete JOB``, ``taint NODE``, ``untaint NODE``, ``end
      PHASE`` (of a running pod)

    orders: whether the usual steps come in other orders than the usual one, too; begun: whether the jobs run already;
    behind: how the path of a watch ends that has delivered nothing to the second operator since its first list
    """

    def __init__(
        self, jobs: dict[str, Json], disturbances: dict[tuple[Any, ...], int], *, ipus: Sequence[int] = (8, 8),
        operators: int = 2, orders: bool = True, begun: bool = False, behind: str = "",
    ) -> None:  # fmt: skip
        super().__init__(operators)
        self._jobs, self._left, self._ipus = jobs, disturbances, ipus
        self._orders, self._begun, self._behind = orders, begun, behind

    # World

    def initial(self) -> State:
        cluster = Cluster()
        for name in ("node-0", "node-1"):
            cluster = kube.create(cluster, Key("nodes", "", name), kube.make_node(name))[0]
        for name, job in self._jobs.items():
            cluster = kube.create(cluster, Key("ipujobs", SPACE, name), job)[0]
        fleets = tuple(
            SimulatedFleet(ipus=ipus, first_rack=1 + n, delay_s=PASSING_S) for n, ipus in enumerate(self._ipus)
        )
        left = tuple(sorted(self._left.items(), key=repr))
        state = State(cluster, fleets, (Part(),) * len(self.names), left=left)
        while self._begun:
            step = next((step for step in self.usual(state) if step.what[0] != "resumes"), None)
            if step is None:
                break
            state = self._held_back(self.apply(state, step))
        return state

    def _held_back(self, state: State) -> State:
        if not self._behind:
            return state
        paths = [path for path, _ in state.parts[1].queues if path.endswith(self._behind)]
        return state._replace(stalled=tuple((self.names[1], path) for path in paths))

    def steps(self, state: State) -> list[Step]:
        usual = list(self.usual(state)) if self._orders else [*filter(None, (self.calm_step(state),))]
        return [*usual, *self.disturbances(state)]

    def calm_step(self, state: State) -> Step | None:
        return next(self.usual(state), None)

    def apply(self, state: State, step: Step) -> State:
        what, *rest = step.what
        apply: Callable[..., State] = getattr(self, f"_{what}")
        return apply(state, *rest)

    def violation(self, before: State, step: Step, after: State) -> str:
        for part, name in enumerate(self.names):
            if after.parts[part].state >= 0 and (error := self.view(after, part).error):
                return f"{name}: {error}"
        return of_step(before.cluster, before.fleets, step.what, after.cluster, after.fleets)

    def end(self) -> None:
        for machine in self.machines:
            machine.end()

    def violation_at_rest(self, state: State) -> str:
        return at_rest(state.cluster, state.fleets)

    def visible(self, state: State) -> object:
        """What somebody outside sees; a world that changes no more rests, even if clocks go on."""
        return state.cluster, state.fleets

    # the steps

    def _start(self, state: State, name: str) -> State:
        part = self.names.index(name)
        number = self.machine(part).start()
        calls = (Waits(),) * len(self.machine(part).views[number].requests)
        return self._attend(with_part(state, part, Part(number, calls)), part)

    def _elect(self, state: State, name: str) -> State:
        return self._feed(state, self.names.index(name), Input("elected"))

    def _stall(self, state: State, name: str, path: str) -> State:
        kinds = (kind for kind, _ in state.left if kind[:2] == ("stall", name) and path.endswith(kind[2]))
        state = less(state, *kinds)
        return state._replace(stalled=tuple(sorted((*state.stalled, (name, path)))))

    def _resumes(self, state: State, name: str, path: str) -> State:
        return state._replace(stalled=tuple(each for each in state.stalled if each != (name, path)))

    def _catch_up(self, state: State, name: str, path: str) -> State:
        state = self._resumes(less(state, ("catch up",)), name, path)
        while dict(state.parts[self.names.index(name)].queues).get(path):
            state = self._event(state, name, path)
        return state

    def _split(self, state: State, name: str) -> State:
        return self._elect(less(state, ("split",)), name)

    def _answer(self, state: State, name: str, request: Request) -> State:
        part = self.names.index(name)
        at = self._find(state, part, request, Answered, AtProxy)
        call = state.parts[part].calls[at]
        if isinstance(call, AtProxy):
            answer = self.answers(state)[call.number]
            state = self._taken(state, call.number)
        else:
            answer = call.answer
        return self._feed(state, part, Input("answer", at, answer))

    def _do(self, state: State, name: str, request: Request) -> State:
        part = self.names.index(name)
        at = self._find(state, part, request, Waits)
        if request.by == "proxy":
            if state.parts[self.proxy].state < 0:
                return with_call(state, part, at, Answered(None))
            number = next(n for n in range(99) if n not in state.at_proxy)
            state = with_call(state, part, at, AtProxy(number))
            state = state._replace(at_proxy=tuple(sorted((*state.at_proxy, number))))
            return self._feed(state, self.proxy, Input("request", None, (number, request)))
        state, answer = self._carry_out(state, request)
        return with_call(state, part, at, Answered(answer))

    def _event(self, state: State, name: str, path: str) -> State:
        part = self.names.index(name)
        queues = dict(state.parts[part].queues)
        line, *rest = queues[path]
        queues[path] = tuple(rest)
        state = with_part(state, part, state.parts[part]._replace(queues=tuple(sorted(queues.items()))))
        return self._feed(state, part, Input("event", path, line))

    def _cut(self, state: State, name: str, path: str) -> State:
        part = self.names.index(name)
        queues = {at: lines for at, lines in state.parts[part].queues if at != path}
        state = with_part(less(state, ("cut",)), part, state.parts[part]._replace(queues=tuple(sorted(queues.items()))))
        return self._feed(state, part, Input("event", path, GONE))

    def _timer(self, state: State, name: str) -> State:
        if name == PROXY and state.late:
            due_s = self.due_s(state) or 0.0
            state = state._replace(late=tuple(late._replace(age_s=late.age_s + due_s) for late in state.late))
        return self._feed(state, self.names.index(name), Input("timer"))

    def _passes(self, state: State, number: int, name: str) -> State:
        return with_fleet(state, number, end_passing(state.fleets[number], name))

    def _collected(self, state: State, key: Key) -> State:
        return self._publish(state, kube.delete(state.cluster, key))

    def _gone(self, state: State, key: Key) -> State:
        return self._publish(state, kube.remove(state.cluster, key))

    def _runs(self, state: State, key: Key, node: str) -> State:
        """The scheduler and the kubelet in one step."""
        change = {"spec": {"nodeName": node}, "status": {"phase": "Running"}}
        return self._publish(state, kube.update(state.cluster, key, change))

    def _end(self, state: State, phase: str, key: Key) -> State:
        state = less(state, ("end", phase))
        return self._publish(state, kube.update(state.cluster, key, {"status": {"phase": phase}}))

    def _taint(self, state: State, node: str) -> State:
        return self._tainted(less(state, ("taint", node)), node, [kube.FAULTY], "true")

    def _untaint(self, state: State, node: str) -> State:
        return self._tainted(less(state, ("untaint", node)), node, None, None)

    def _tainted(self, state: State, node: str, taints: Any, label: str | None) -> State:
        change = {"metadata": {"labels": {"muster.dev/faulty": label}}, "spec": {"taints": taints}}
        return self._publish(state, kube.update(state.cluster, Key("nodes", "", node), change))

    def _scale(self, state: State, name: str, instances: int) -> State:
        return self._edit(less(state, ("scale", name, instances)), name, {"jobInstances": instances})

    def _suspend(self, state: State, name: str) -> State:
        return self._edit(less(state, ("suspend", name)), name, {"suspend": True})

    def _resume(self, state: State, name: str) -> State:
        return self._edit(less(state, ("resume", name)), name, {"suspend": False})

    def _edit(self, state: State, name: str, spec: Json) -> State:
        return self._publish(state, kube.update(state.cluster, Key("ipujobs", SPACE, name), {"spec": spec}))

    def _delete(self, state: State, name: str) -> State:
        state = less(state, ("delete", name))
        return self._publish(state, kube.delete(state.cluster, Key("ipujobs", SPACE, name)))

    def _crash(self, state: State, name: str, late: bool) -> State:
        part = self.names.index(name)
        state = less(state, ("crash", name), *([("late",)] if late else []))
        requests, calls = self.view(state, part).requests, state.parts[part].calls
        sent = [Late(request) for request, call in zip(requests, calls, strict=True) if isinstance(call, Waits)]
        state = with_part(state, part, Part())
        state = state._replace(stalled=tuple(each for each in state.stalled if each[0] != name))
        if late:
            state = add_late(state, sent)
        if part != self.proxy:
            return self._attend(state, self.proxy) if state.parts[self.proxy].state >= 0 else state
        for other in range(self.proxy):  # their connections to the proxy are reset
            broken = (Answered(None) if isinstance(call, AtProxy) else call for call in state.parts[other].calls)
            state = with_part(state, other, state.parts[other]._replace(calls=tuple(broken)))
        return state._replace(at_proxy=())

    def _depose(self, state: State, late: bool) -> State:
        leader = self.leader(state)
        assert leader is not None
        state = less(state, ("depose",), *([("late",)] if late else []))
        state = self._feed(state, leader, Input("deposed"), late=late)
        others = [part for part in range(self.proxy) if part != leader and state.parts[part].state >= 0]
        return self._elect(state, self.names[others[0]]) if others else state

    def _lost(self, state: State, name: str, request: Request, how: str) -> State:
        """how: it was done, it never is, or later."""
        part = self.names.index(name)
        state = less(state, ("silent",) if request.by == "vipu" else ("lose",))
        at = self._find(state, part, request, *([Waits] if how != "done" else [Answered, AtProxy]))
        if how == "late":
            state = add_late(state, [Late(request)])
        state = self._feed(state, part, Input("answer", at, None))
        return self._attend(state, self.proxy) if request.by == "proxy" else state

    def _refused(self, state: State, name: str, request: Request) -> State:
        """409, and nothing has changed."""
        part = self.names.index(name)
        at = self._find(state, part, request, Waits)
        return self._feed(less(state, ("refuse",)), part, Input("answer", at, failure(409, "Conflict")))

    def _happens(self, state: State, late: Late) -> State:
        state, _ = self._carry_out(self._dropped(state, late), late.request)
        return state

    def _dropped(self, state: State, late: Late) -> State:
        rest = list(state.late)
        rest.remove(late)
        return state._replace(late=tuple(rest))

    # how steps are made of inputs

    def _find(self, state: State, part: int, request: Request, *kinds: type) -> int:
        found = enumerate(self.calls(state, part))
        return next(at for at, (each, call) in found if each == request and isinstance(call, kinds))

    def _carry_out(self, state: State, request: Request) -> tuple[State, Answer]:
        if request.by == "vipu":
            number = VIPUS.index(request.path)
            fleet, answer = call_vipu(state.fleets[number], request)
            return with_fleet(state, number, fleet), answer
        written = kube.execute(state.cluster, request)
        return self._publish(state, written), written[1]

    def _publish(self, state: State, written: kube.Written) -> State:
        cluster, _, changes = written
        state = state._replace(cluster=cluster)
        for change in changes:
            for number, part in enumerate(state.parts):
                queues = tuple(
                    (path, (*lines, change.line) if kube.shows(path, change.key) else lines)
                    for path, lines in part.queues
                )
                state = with_part(state, number, part._replace(queues=queues))
        return state

    def _feed(self, state: State, part: int, each: Input, *, late: bool = False) -> State:
        before = state.parts[part]
        requests = self.view(state, part).requests
        outcome = self.machine(part).step(before.state, each)
        view = self.machine(part).views[outcome.state]
        if late:
            gone = [n for n, call in enumerate(before.calls) if n not in outcome.kept and isinstance(call, Waits)]
            state = add_late(state, [Late(requests[n]) for n in gone])
        calls = [before.calls[n] for n in outcome.kept]
        calls += [Waits()] * (len(view.requests) - len(calls))
        queues = {path: dict(before.queues).get(path, ()) for path in view.watches}
        state = with_part(state, part, Part(outcome.state, tuple(calls), tuple(sorted(queues.items()))))
        return self._attend(state, part)

    def _attend(self, state: State, part: int) -> State:
        """Answer what is answered at once; take answers from the proxy for which nobody waits."""
        view = self.view(state, part)
        for at, (request, call) in enumerate(zip(view.requests, state.parts[part].calls, strict=True)):
            if isinstance(call, Waits) and _is_read(request):
                _, answer = self._carry_out(state, request)
                return self._feed(state, part, Input("answer", at, answer))
        if part == self.proxy:
            awaited = {call.number for each in state.parts for call in each.calls if isinstance(call, AtProxy)}
            for number in self.answers(state):
                if number not in awaited:
                    return self._taken(state, number)
        return state

    def _taken(self, state: State, number: int) -> State:
        state = state._replace(at_proxy=tuple(each for each in state.at_proxy if each != number))
        return self._feed(state, self.proxy, Input("taken", None, number))


def _is_read(request: Request) -> bool:
    """Lists that begin a watch, and what is asked of V-IPU."""
    if request.by == "vipu":
        return request.method in ("list", "blocks", "capacity")
    of_one_job = names.JOB_UID in dict(request.params).get("labelSelector", "")
    return request.by == "" and request.method == "GET" and not kube.key_of(request.path)[0].name and not of_one_job
