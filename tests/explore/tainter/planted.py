"""Defects that the explorer has to find: each is planted into the real code by a patch, in a scope that it needs.

Four were found in Muster by an attack, three are known of other systems.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.explore.tainter.agent_world import AgentWorld
from tests.explore.tainter.state import Scope
from tests.explore.tainter.world import TainterWorld

from muster_agent.findings.ledger import Ledger
from muster_kube.controller.reflector import Reflector
from muster_tainter.budgets.allocator import BudgetAllocator
from muster_tainter.budgets.reservations import BudgetReservations
from muster_tainter.faults import lifecycle
from muster_tainter.fleet.watched_fleet import WatchedFleet

ONE = ("n1",)


class Planted(NamedTuple):
    """says: a part of what the explorer says when it has found it"""

    plant: Callable[[], AbstractContextManager[Any]]
    world: Callable[[], TainterWorld]
    says: str


# A clear closes what the agent reads later, if it belongs to the same finding.
_lost_line = partial(patch.object, Ledger, "_signs_after", lambda *_: [])

_list_and_watch = Reflector._list_and_watch


async def _pauses_after_gone(self: Reflector[Any]) -> float:
    """A pause before every attempt, also when only a list is missing."""
    pause_s = await _list_and_watch(self)
    return pause_s or self._pause_s(None, lasted=False)


_slow_after_gone = partial(patch.object, Reflector, "_list_and_watch", _pauses_after_gone)

# The annotation is believed, whatever taint it names.
_believes = partial(
    patch, "muster_tainter.faults.desired_state.trusted_record", lambda memory, _node, _policy: memory
)  # fmt: skip

# A number closes everything below it.
_closes_all = partial(
    patch, "muster_tainter.faults.node_report.closes", lambda _check, closed, occurrence: closed >= occurrence
)  # fmt: skip

_store_list = Reflector._store_list


def _forgets(self: Reflector[Any], pages: list[Any], newest: bool) -> None:
    """A consumer whose place in the stream is gone goes on with the newest event."""
    if self.synced:
        self._version = pages[-1].resource_version
    else:
        _store_list(self, pages, newest)


_falls_behind = partial(patch.object, Reflector, "_store_list", _forgets)

_shortage = BudgetAllocator._shortage
RATE_S = 600


def _by_rate(self: BudgetAllocator, standing: Any, now: int) -> Any:
    """A breaker that only knows how many nodes were tainted lately."""
    lately = any(node.ours and now - node.tainted_at < RATE_S for node in self._nodes.values())
    return _shortage(self, standing, now) if lately else None


_slow_drip = partial(patch.object, BudgetAllocator, "_shortage", _by_rate)

_closing = lifecycle._closing


def _any_good_news(fault: Any, want: Any, report: Any, *others: Any) -> Any:
    """A report that something is well again closes whatever is open on the node."""
    good = [over for entries in (report.cleared or {}).values() for over in entries]
    return ("driver", "healthy") if good else _closing(fault, want, report, *others)


_healthy_event = partial(patch.object, lifecycle, "_closing", _any_good_news)


async def _reads_nothing(_self: WatchedFleet) -> None:
    pass


_stale_takeover = partial(patch.object, WatchedFleet, "read_tainted", _reads_nothing)

_no_fence = partial(patch.object, BudgetReservations, "take_over", lambda *_: None)

PLANTED = {
    "line lost after a clear": Planted(
        _lost_line, partial(AgentWorld, Scope(nodes=ONE, leaders=1, clears=1), known=1), "nobody closed is not open"
    ),
    "slow healing after 410": Planted(
        _slow_after_gone, partial(TainterWorld, Scope(nodes=ONE, leaders=1, gone=1)), "at once after 410"
    ),
    "an annotation strips taints": Planted(
        _believes, partial(TainterWorld, Scope(nodes=ONE, leaders=1, edits=(("forge", "n1"),))), "of others was touched"
    ),
    "a far number closes faults": Planted(
        _closes_all,
        partial(TainterWorld, Scope(nodes=ONE, leaders=1, fires=1, edits=(("far", "n1"),))),
        "nobody closed is not open",
    ),
    "a consumer that falls behind forgets a fault": Planted(
        _falls_behind, partial(TainterWorld, Scope(nodes=ONE, leaders=1, fires=1, gone=1)), "nobody closed is not open"
    ),
    "a slow drip never trips a rate breaker": Planted(
        _slow_drip,
        partial(TainterWorld, Scope(failing=ONE, leaders=1, budget=1, fires=1, clocks=(3600.0,))),
        "above budget",
    ),
    "a healthy event untaints another fault": Planted(
        _healthy_event,
        partial(TainterWorld, Scope(nodes=ONE, leaders=1, failing=ONE, other=ONE, drivers=1)),
        "another check is not open",
    ),
    "a new leader's watch lags behind its predecessor's taints": Planted(
        _stale_takeover,
        partial(TainterWorld, Scope(failing=("n1", "n2"), budget=1, handovers=1)),
        "above budget",
    ),
    "a leader that was stopped before its write taints a node later": Planted(
        _no_fence,
        partial(TainterWorld, Scope(failing=("n1", "n2"), budget=1, handovers=1, late=True)),
        "above budget",
    ),
}
