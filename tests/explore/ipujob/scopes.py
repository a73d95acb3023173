"""The scopes of IPUJobs: which jobs there are, and what may disturb them, each as often as it says.

``everything`` has two jobs with three partitions and all disturbances; in ``running`` they run already. In ``replicas``
a service runs whose instances restart alone; in ``behind`` the second operator has not seen the two pods. The others
are small enough for orders of the usual steps, too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tests.explore.ipujob.state import make_job
from tests.explore.ipujob.world import IPUJobWorld

Kind = tuple[Any, ...]


def _world(
    jobs: dict[str, int], *kinds: Kind, orders: bool = True, begun: bool = False, behind: str = "",
    restarts: str = "Never", workers: int = 1,
) -> IPUJobWorld:  # fmt: skip
    """jobs: instances by name; workers: of each."""
    policy = {"type": restarts, "backOffLimit": 3}
    spec = {"restartPolicy": policy, "workersPerJobInstance": str(workers)}
    submitted = {name: make_job(name, instances, **spec) for name, instances in jobs.items()}
    return IPUJobWorld(submitted, dict.fromkeys(kinds, 1), orders=orders, begun=begun, behind=behind)


_LOST: tuple[Kind, ...] = (("lose",), ("silent",), ("refuse",))
_REPLICAS: tuple[Kind, ...] = (("depose",), ("split",), ("late",), ("crash", "operator 0"), ("crash", "operator 1"))
_STALE: tuple[Kind, ...] = (
    ("cut",), ("stall", "operator 0", "/pods"), ("stall", "operator 1", "/ipujobs"), ("stall", "operator 1", "/pods"),
)  # fmt: skip
_USERS: tuple[Kind, ...] = (
    ("scale", "a", 2), ("scale", "b", 1), ("suspend", "b"), ("resume", "b"), ("delete", "a"),
)  # fmt: skip
_NODES: tuple[Kind, ...] = (("taint", "node-0"), ("end", "Failed"), ("end", "Succeeded"))

SCOPES: Mapping[str, Callable[[], IPUJobWorld]] = {
    "begin": lambda: _world({"a": 1}, *_LOST, *_REPLICAS, ("crash", "proxy")),
    "scale": lambda: _world({"a": 1}, ("scale", "a", 2), ("scale", "a", 0), ("refuse",), ("silent",), ("cut",)),
    "suspend": lambda: _world(
        {"a": 1}, ("suspend", "a"), ("resume", "a"), *_LOST, ("stall", "operator 0", "/muster/configmaps")
    ),
    "delete": lambda: _world({"a": 1}, ("delete", "a"), *_LOST, ("crash", "proxy"), ("late",), ("depose",)),
    "end": lambda: _world({"a": 1}, *_NODES, *_STALE, ("depose",), ("delete", "a")),
    "everything": lambda: _world(
        {"a": 1, "b": 2}, *_USERS, *_NODES, *_LOST, *_REPLICAS, *_STALE, ("crash", "proxy"), orders=False
    ),
    "takeover": lambda: _world(
        {"a": 1}, *_REPLICAS, *_STALE, ("end", "Succeeded"), ("delete", "a"), ("refuse",), begun=True
    ),
    "running": lambda: _world(
        {"a": 1, "b": 2},
        *_USERS,
        ("end", "Failed"),
        ("refuse",),
        ("depose",),
        ("crash", "operator 0"),
        ("stall", "operator 1", "/ipujobs"),
        orders=False,
        begun=True,
    ),
    "replicas": lambda: _world(
        {"a": 3},
        ("end", "Failed"),
        ("end", "Succeeded"),
        ("scale", "a", 2),
        *_LOST,
        ("depose",),
        ("crash", "operator 0"),
        ("crash", "proxy"),
        ("stall", "operator 1", "/ipujobs"),
        ("stall", "operator 0", "/pods"),
        orders=False,
        begun=True,
        restarts="Always",
    ),
    "behind": lambda: _world(
        {"a": 1},
        ("suspend", "a"),
        ("scale", "a", 0),
        ("delete", "a"),
        ("end", "Failed"),
        ("catch up",),
        *_LOST,
        # but not "split": two that lead for ever, of which one sees no pods, correct each other's status for ever
        *(kind for kind in _REPLICAS if kind != ("split",)),
        begun=True,
        behind="/pods",
        restarts="OnFailure",
        workers=2,
    ),
    "two jobs": lambda: _world({"a": 1, "b": 2}, *_USERS, *_LOST, ("depose",), ("crash", "proxy")),
}
