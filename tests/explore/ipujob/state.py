"""The state of the explored world of IPUJobs, as a value, and how it is changed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.explore.api_server import Answer, Json, Request
from tests.explore.ipujob.cluster import Cluster

from muster_operator.vipu.simulator.fleet import SimulatedFleet


class Waits(NamedTuple):
    """A call that was not carried out yet."""


class Answered(NamedTuple):
    answer: Answer | None


class AtProxy(NamedTuple):
    number: int


Call = Waits | Answered | AtProxy


class Part(NamedTuple):
    """A process: its state (-1: it is not running), its calls in their order, and what each watch has not received."""

    state: int = -1
    calls: tuple[Call, ...] = ()
    queues: tuple[tuple[str, tuple[bytes, ...]], ...] = ()


class Late(NamedTuple):
    """A request whose sender does not wait any more, and which may be carried out yet. age_s: on the proxy's clock."""

    request: Request
    age_s: float = 0.0


class State(NamedTuple):
    """stalled: watches that deliver nothing for a while. left: disturbances that may still happen, and how often."""

    cluster: Cluster
    fleets: tuple[SimulatedFleet, ...]
    parts: tuple[Part, ...]  # the operators, the proxy
    late: tuple[Late, ...] = ()
    stalled: tuple[tuple[str, str], ...] = ()
    at_proxy: tuple[int, ...] = ()  # requests that the proxy has not answered, or whose answer has not left
    left: tuple[tuple[tuple[Any, ...], int], ...] = ()


def make_job(name: str, instances: int, **more: Any) -> Json:
    template = {"spec": {"containers": [{"name": "main", "image": "poplar:3"}]}}
    spec = {"jobInstances": instances, "ipusPerJobInstance": "4", "workersPerJobInstance": "1",
            "workers": {"template": template}, "restartPolicy": {"type": "Never", "backOffLimit": 3},
            "cleanPodPolicy": "None", **more}  # fmt: skip
    return {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": name}, "spec": spec}


def with_part(state: State, part: int, new: Part) -> State:
    return state._replace(parts=(*state.parts[:part], new, *state.parts[part + 1 :]))


def with_call(state: State, part: int, at: int, call: Call) -> State:
    calls = state.parts[part].calls
    return with_part(state, part, state.parts[part]._replace(calls=(*calls[:at], call, *calls[at + 1 :])))


def with_fleet(state: State, number: int, fleet: SimulatedFleet) -> State:
    return state._replace(fleets=(*state.fleets[:number], fleet, *state.fleets[number + 1 :]))


def add_late(state: State, sent: Sequence[Late]) -> State:
    changes = [each for each in sent if each.request.writes and each.request.by != "proxy"]
    return state._replace(late=tuple(sorted((*state.late, *changes))))


def less(state: State, *kinds: tuple[Any, ...]) -> State:
    return state._replace(left=tuple((kind, number - (kind in kinds)) for kind, number in state.left))
