"""What can happen next in the world of IPUJobs: the usual steps, the most urgent first, and the disturbances."""

from collections.abc import Iterator
from typing import Any

from tests.explore.api_server import Answer, Request
from tests.explore.explorer import Step
from tests.explore.ipujob import cluster as kube
from tests.explore.ipujob.cluster import Key
from tests.explore.ipujob.processes import INTERVALS, OperatorProcess, ProxyProcess
from tests.explore.ipujob.state import Answered, AtProxy, Call, State, Waits
from tests.explore.process import Machine

from muster_operator.vipu.simulator.fleet import PASSING

SPACE = "default"
OPERATORS = ("operator 0", "operator 1")
PROXY = "proxy"


class PossibleSteps:
    """operators: their number."""

    def __init__(self, operators: int) -> None:
        self.names = (*OPERATORS[:operators], PROXY)
        self.proxy = operators  # its index
        self.machines = Machine(OperatorProcess), Machine(ProxyProcess)

    def machine(self, part: int) -> Machine:
        return self.machines[part == self.proxy]

    def view(self, state: State, part: int) -> Any:
        return self.machine(part).views[state.parts[part].state]

    def leader(self, state: State) -> int | None:
        found = [n for n in range(self.proxy) if state.parts[n].state >= 0 and self.view(state, n).shown]
        return found[0] if found else None

    def due_s(self, state: State) -> float | None:
        """Until the proxy's next timer; None: there is none."""
        return self.view(state, self.proxy).shown[1] if state.parts[self.proxy].state >= 0 else None

    def answers(self, state: State) -> dict[int, Answer]:
        return dict(self.view(state, self.proxy).shown[0]) if state.parts[self.proxy].state >= 0 else {}

    def calls(self, state: State, part: int) -> list[tuple[Request, Call]]:
        return list(zip(self.view(state, part).requests, state.parts[part].calls, strict=True))

    # what happens if nobody disturbs, the most urgent first

    def usual(self, state: State) -> Iterator[Step]:
        for part, name in enumerate(self.names):
            if state.parts[part].state < 0:
                yield _step("start", name, touches={name, "cluster", "vipu"})
        if self.leader(state) is None:
            for part in range(self.proxy):
                if state.parts[part].state >= 0:
                    yield _step("elect", self.names[part], touches={*OPERATORS})
        for part, name in enumerate(self.names):
            if state.parts[part].state >= 0:
                yield from self._call_steps(state, part, name)
        for part, name in enumerate(self.names):
            for path, lines in state.parts[part].queues:
                if lines and (name, path) not in state.stalled:
                    yield _step("event", name, path, touches={name, "vipu" if name == PROXY else name})
        for number, fleet in enumerate(state.fleets):
            for held in fleet.partitions:
                if held.state in PASSING:
                    yield _step("passes", number, held.name, touches={"vipu"})
        yield from self._kubernetes_steps(state)
        due_s = self.due_s(state)
        if due_s is not None and not any(late.age_s + due_s >= INTERVALS.late_s for late in state.late):
            yield _step("timer", PROXY, touches={PROXY, "late", "vipu"})
        for late in state.late:
            if late.request.by == "vipu":
                yield _step("happens", late, touches={"vipu", "late"})
        for name, path in state.stalled:
            yield _step("resumes", name, path, touches={name})
        for part in range(self.proxy):
            if state.parts[part].state >= 0 and self.view(state, part).timers:
                yield _step("timer", self.names[part], touches={self.names[part]})
        for late in state.late:
            if late.request.by != "vipu":
                yield _step("dropped", late, touches={"late"})

    def _call_steps(self, state: State, part: int, name: str) -> Iterator[Step]:
        requests = self.view(state, part).requests
        answers = self.answers(state)
        calls = state.parts[part].calls
        for request, call in zip(requests, calls, strict=True):
            if isinstance(call, Answered) or (isinstance(call, AtProxy) and call.number in answers):
                yield _step("answer", name, request, touches={name, PROXY, "vipu"} if request.by == "proxy" else {name})
        for request, call in zip(requests, calls, strict=True):
            if isinstance(call, Waits):
                place = {"proxy": PROXY, "vipu": "vipu"}.get(request.by, "cluster")
                yield _step("do", name, request, touches={name, place, "vipu" if place == PROXY else place})

    def _kubernetes_steps(self, state: State) -> Iterator[Step]:
        jobs = {job["metadata"]["uid"] for _, job in state.cluster.of("ipujobs")}
        nodes = [node for _, node in state.cluster.of("nodes")]
        for kind in ("pods", *kube.SMALL):
            for key, obj in state.cluster.of(kind):
                owners = obj["metadata"].get("ownerReferences", [])
                owned = not owners or any(owner["uid"] in jobs for owner in owners)
                if not owned and not obj["metadata"].get("deletionTimestamp"):
                    yield _step("collected", key, touches={"cluster"})
        for key, pod in state.cluster.of("pods"):
            if pod["metadata"].get("deletionTimestamp"):
                yield _step("gone", key, touches={"cluster"})
            elif not pod["spec"].get("nodeName"):
                for node in nodes:
                    if kube.may_run(pod, node):
                        yield _step("runs", key, node["metadata"]["name"], touches={"cluster"})

    # what else may happen

    def disturbances(self, state: State) -> Iterator[Step]:
        left = {kind for kind, number in state.left if number > 0}
        up = [part for part in range(len(self.names)) if state.parts[part].state >= 0]
        for kind in sorted(left, key=repr):
            match kind:
                case ("crash", name) if self.names.index(name) in up:
                    touches = {name, *OPERATORS, PROXY, "cluster", "late"}
                    yield _step("crash", name, False, touches=touches)
                    if ("late",) in left:
                        yield _step("crash", name, True, touches=touches)
                case ("depose",) if self.leader(state) is not None:
                    touches = {*OPERATORS, "late"}
                    yield _step("depose", False, touches=touches)
                    if ("late",) in left:
                        yield _step("depose", True, touches=touches)
                case ("stall", name, ending):
                    for path, _ in state.parts[self.names.index(name)].queues:
                        if path.endswith(ending):
                            yield _step("stall", name, path, touches={name})
                case ("catch up",):
                    for name, path in state.stalled:
                        yield _step("catch_up", name, path, touches={name})
                case ("split",):
                    standing_by = [part for part in up if part != self.proxy and not self.view(state, part).shown]
                    for part in standing_by if self.leader(state) is not None else []:
                        yield _step("split", self.names[part], touches={*OPERATORS})
                case ("lose",) | ("silent",):
                    yield from self._lost_answers(state, up, kind[0])
                case ("refuse",):
                    for part in up:
                        for request, call in self.calls(state, part):
                            if isinstance(call, Waits) and request.by == "":
                                yield _step("refused", self.names[part], request, touches={self.names[part]})
                case ("cut",):
                    for part in up:
                        for path, lines in state.parts[part].queues:
                            if lines:
                                name = self.names[part]
                                yield _step("cut", name, path, touches={name, "cluster", "vipu"})
                case ("taint" | "untaint", _):
                    yield _step(*kind, touches={"cluster"})
                case ("end", phase):
                    for key, pod in state.cluster.of("pods"):
                        if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp"):
                            yield _step("end", phase, key, touches={"cluster"})
                case ("scale" | "suspend" | "resume" | "delete", name, *_):
                    job = state.cluster.get(Key("ipujobs", SPACE, name))
                    if job is not None and not job["metadata"].get("deletionTimestamp"):
                        yield _step(*kind, touches={"cluster"})
        for late in state.late:
            yield _step("happens", late, touches={"cluster", "vipu", "late"})

    def _lost_answers(self, state: State, up: list[int], kind: str) -> Iterator[Step]:
        for part in up:
            name = self.names[part]
            for request, call in self.calls(state, part):
                if (request.by == "vipu") != (kind == "silent") or not request.writes:
                    continue
                touches = {name, "vipu", "late"}
                if isinstance(call, Answered) and call.answer is not None:
                    yield _step("lost", name, request, "done", touches=touches)
                if isinstance(call, AtProxy):
                    yield _step("lost", name, request, "done", touches=touches)
                if isinstance(call, Waits) and kind == "silent":
                    yield _step("lost", name, request, "never", touches=touches)
                    yield _step("lost", name, request, "late", touches=touches)


def _step(*what: Any, touches: set[str]) -> Step:
    return Step(what, frozenset(touches))
