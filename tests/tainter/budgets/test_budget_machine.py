"""Random fleets under budgets: writes land, fail, or nobody knows; the watch lags; other hands taint, cordon, remove
and relabel; budgets are lowered, clocks jump, leaders die. The allocator is the real one; what it may do is counted
here anew, from all the nodes, each time.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster_kube.controller.reflector import LIST_SILENCE_S, SILENCE_MARGIN_S, WATCH_S
from muster_tainter.budgets.allocator import UNCERTAIN_S, BudgetAllocator, Severity
from muster_tainter.budgets.pool_usage import BudgetedNode
from muster_tainter.policy.pools import Pool

NAMES = [f"n{number}" for number in range(6)]
SERVER_ENDS_S = 60.0  # a request is not carried out later than that
BEHIND_S = WATCH_S[1] + SILENCE_MARGIN_S + LIST_SILENCE_S  # a watch is never further behind than that
names = st.sampled_from(NAMES)
several = st.lists(names, min_size=2, max_size=5, unique=True)
racks = st.sampled_from(["r1", "r2", ""])
fates = st.sampled_from(
    [
        "under way",
        "answered",
        "answered",
        "refused",
        "not answered",
        "not answered, and the watch speaks",
        "not answered, and the finding goes",
    ]
)
severities: st.SearchStrategy[Severity] = st.sampled_from([(1.0, 0.0), (1.0, 5.0), (2.0, 0.0), (3.0, 0.0)])
amounts = st.sampled_from([0, 1, 2, 2, 3, "20%", "30%", "50%", "100%"])
budgets = st.fixed_dictionaries(
    {},
    optional={
        "tainted": amounts,
        "perDomain": amounts,
        "healthyPerDomain": amounts,
        "rate": st.fixed_dictionaries(
            {"nodes": st.sampled_from([0, 1, 2, 3, "30%"]), "within": st.sampled_from(["10m", "2h"])}
        ),
    },
)


def pool(name: str, budget: dict[str, Any]) -> Pool:
    return Pool.model_validate({"name": name, "selector": {}, "domain": "rack", "budget": budget})


BY_OTHERS: dict[str, dict[str, Any]] = {
    "cordoned": {"cordoned": True},
    "uncordoned": {"cordoned": False},
    "not ready": {"ready": False},
    "ready": {"ready": True},
    "tainted": {"foreign": True},
    "untainted": {"foreign": False},
    "our memory removed": {"ours": False, "tainted_at": 0.0},
    "relabelled": {},
}


@dataclass(frozen=True)
class Real:
    """A node on the server."""

    version: int
    rack: str
    gpu: bool
    ready: bool = True
    cordoned: bool = False
    foreign: bool = False
    ours: bool = False
    tainted_at: float = 0.0

    @property
    def standing(self) -> BudgetedNode:
        pools = (("all", self.rack), *((("gpu", self.rack),) if self.gpu else ()))
        return BudgetedNode(pools, self.ready, not self.cordoned, self.foreign or self.ours, self.ours, self.tainted_at)


@dataclass(frozen=True)
class Write:
    version: int
    stamp: float
    sent: float = field(compare=False)


# what may happen: how often, and with what. One rule for all of it: of many hypothesis leaves out about half in each
# run, and a fleet in which nobody asks shows nothing
HAPPENINGS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "findings_ask": (5, {"asking": several, "severity": severities, "fate": fates}),
    "who_is_called_asks": (2, {"fate": fates}),
    "findings_go": (1, {"going": several}),
    "writes_are_answered": (2, {"answered": several}),
    "some_are_carried_out_after_all": (1, {"late": several}),
    "the_leader_dies": (1, {"landed": st.sets(names)}),
    "the_leader_is_stopped": (1, {"wanting": st.sets(names)}),
    "who_is_blocked_is_written": (2, {"written": several}),
    "nodes_are_released": (2, {"released": several}),
    "the_watch_delivers": (1, {"seen": several}),
    "others_change_nodes": (
        1,
        {"touched": several, "what": st.sampled_from(sorted(BY_OTHERS)), "rack": racks, "seen": st.booleans()},
    ),
    "a_node_goes_or_comes": (1, {"name": names, "rack": racks}),
    "the_policy_is_edited": (1, {"which": st.sampled_from(["all", "gpu"]), "budget": budgets}),
    "time_passes": (
        1,
        {
            "seconds": st.sampled_from([0.3, 1.0, 61.0, 100.0, 599.7, 760.0, 3600.0]),
            "jump": st.sampled_from([0, 0, 0, -3600, 3600]),
        },
    ),
}
happenings = st.sampled_from([name for name, (often, _) in HAPPENINGS.items() for _ in range(often)]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(HAPPENINGS[name][1]))
)


class Fleet(RuleBasedStateMachine):
    @initialize(
        racks=st.lists(racks, min_size=len(NAMES), max_size=len(NAMES)),
        gpus=st.lists(st.booleans(), min_size=len(NAMES), max_size=len(NAMES)),
        every=budgets,
        gpu=budgets,
    )
    def start(self, racks: list[str], gpus: list[bool], every: dict[str, Any], gpu: dict[str, Any]) -> None:
        self.wall, self.monotonic, self.serial = 1.8e9, 0.0, 0
        self.server = {name: Real(1, rack, is_gpu) for name, rack, is_gpu in zip(NAMES, racks, gpus, strict=True)}
        self.pools = {"all": pool("all", every), "gpu": pool("gpu", gpu)}
        self.writing: dict[str, Write] = {}  # a worker waits for the answer
        self.unknown: dict[str, Write] = {}  # nobody does, and it may still be carried out
        self.former: dict[str, Write] = {}  # leaders that were stopped may send it when they go on
        self.a_leader_begins()

    @rule(happening=happenings)
    def something_happens(self, happening: tuple[str, dict[str, Any]]) -> None:
        name, arguments = happening
        getattr(self, name)(**arguments)

    def a_leader_begins(self) -> None:
        self.allocator = BudgetAllocator(lambda: self.monotonic, self.pools.values())
        self.seen = dict(self.server)
        self.unseen_since: dict[str, float] = {}  # on the monotonic clock
        self.wants: dict[str, tuple[Severity, int]] = {}
        for name, real in self.server.items():
            self.allocator.note(name, real.standing, str(real.version))

    # what is counted here

    def members(self, pool: str, domain: str | None = None) -> list[str]:
        places = [(pool, domain)] if domain is not None else [(pool, rack) for rack in ("r1", "r2", "")]
        return [name for name, real in self.seen.items() if set(places) & set(real.standing.pools)]

    def in_window(self, at: float, within: float, now: float) -> bool:
        return bool(at) and abs(math.floor(now) - at) < within

    def fits(self, name: str, taken: Iterable[str], now: float) -> bool:
        """Whether ``name`` may be tainted beside ``taken``, who are or will be. If it is one of them, because a former
        leader may taint it, it takes room from itself."""
        gone = set(taken)
        gone_and_ours = gone | {other for other, real in self.seen.items() if real.ours}
        for pool_name, domain in self.seen[name].standing.pools:
            budget = self.pools[pool_name].budget
            everyone, part = self.members(pool_name), self.members(pool_name, domain)
            if budget.tainted is not None and len(gone_and_ours & set(everyone)) >= budget.tainted.of(len(everyone)):
                return False
            if budget.per_domain is not None and len(gone_and_ours & set(part)) >= budget.per_domain.of(len(part)):
                return False
            healthy = {other for other in part if self.seen[other].standing.healthy} - gone
            floor = budget.healthy_per_domain
            may_cost_one = self.seen[name].standing.healthy
            if floor is not None and may_cost_one and len(healthy) <= floor.of(len(part)):
                return False
            if budget.rate is not None:
                newly = {
                    other
                    for other in everyone
                    if (other in gone and not self.seen[other].ours)
                    or self.in_window(self.seen[other].tainted_at, budget.rate.within, now)
                }
                if name not in gone or self.in_window(self.seen[name].tainted_at, budget.rate.within, now):
                    newly -= {name}
                if len(newly) >= budget.rate.nodes.of(len(everyone)):
                    return False
        return True

    def held(self) -> list[str]:
        return [name for name in NAMES if self.allocator.holds(name)]

    def worst_first(self) -> list[str]:
        return sorted(self.wants, key=lambda name: (tuple(-x for x in self.wants[name][0]), self.wants[name][1]))

    def served(self, waiting: Iterable[str], now: float) -> list[str]:
        served: list[str] = []
        for name in waiting:
            if not self.allocator.blocked(name) and self.fits(name, [*self.held(), *served], now):
                served.append(name)
        return served

    def may_land(self, name: str, write: Write) -> bool:
        real = self.server.get(name)
        in_time = self.monotonic - write.sent <= (UNCERTAIN_S if write is self.former.get(name) else SERVER_ENDS_S)
        return real is not None and real.version == write.version and in_time

    def may_be_tainted(self) -> set[str]:
        """All that carry taints of ours, or will if everything that is under way is carried out."""
        under_way = [*self.writing.items(), *self.unknown.items(), *self.former.items()]
        return {name for name, real in self.server.items() if real.ours} | {
            name for name, write in under_way if self.may_land(name, write)
        }

    def no_budget_is_exceeded_by(self, name: str) -> None:
        tainted = self.may_be_tainted()
        for pool_name, domain in self.seen[name].standing.pools:
            budget = self.pools[pool_name].budget
            everyone, part = self.members(pool_name), self.members(pool_name, domain)
            if budget.tainted is not None:
                assert len(tainted & set(everyone)) <= budget.tainted.of(len(everyone))
            if budget.per_domain is not None:
                assert len(tainted & set(part)) <= budget.per_domain.of(len(part))
            if budget.healthy_per_domain is not None and self.seen[name].standing.healthy:
                healthy = [other for other in part if self.seen[other].standing.healthy and other not in tainted]
                assert len(healthy) >= budget.healthy_per_domain.of(len(part))
            if budget.rate is not None:
                within = budget.rate.within
                newly = [
                    other
                    for other in everyone
                    if (other in tainted and not self.server[other].ours)
                    or (other in self.server and self.in_window(self.server[other].tainted_at, within, self.wall))
                ]
                assert len(newly) <= budget.rate.nodes.of(len(everyone))

    # the leader

    def findings_ask(self, asking: list[str], severity: Severity, fate: str) -> None:
        for name in asking:
            if name in self.seen and name not in self.writing:
                self.ask(name, severity)
        self.comes_of_it(asking, fate)

    def comes_of_it(self, names: list[str], fate: str) -> None:
        if fate == "answered":
            self.writes_are_answered(names)
        elif fate == "refused":
            self.writes_are_refused(names)
        elif fate != "under way":
            self.writes_are_not_answered(names)
            if fate == "not answered, and the watch speaks":
                self.the_watch_delivers(names)
            elif fate == "not answered, and the finding goes":
                self.findings_go(names)

    def who_is_called_asks(self, fate: str) -> None:
        called = self.allocator.ready(self.wall)
        for name in called:
            self.ask(name, self.wants[name][0])
        self.comes_of_it(called, fate)

    def ask(self, name: str, severity: Severity) -> None:
        free = self.seen[name].ours or (self.allocator.holds(name) and not self.allocator.blocked(name))
        others = [other for other in self.worst_first() if other != name]
        since = self.wants[name][1] if name in self.wants else self.serial
        mine = tuple(-x for x in severity), since
        worse = [other for other in others if (tuple(-x for x in self.wants[other][0]), self.wants[other][1]) < mine]
        expected = free or self.fits(name, [*self.held(), *self.served(worse, self.wall)], self.wall)
        if self.allocator.blocked(name) and self.served(worse, self.wall) == worse:
            others_held = [other for other in self.held() if other != name]
            expected = expected or self.fits(name, [*others_held, *worse], self.wall)
        shortage = self.allocator.ask(name, severity, self.wall)
        assert (shortage is None) == expected
        if shortage is not None:
            assert shortage.reason.startswith("budget: ")
            self.serial += name not in self.wants
            self.wants[name] = severity, since
            return
        self.wants.pop(name, None)
        self.writing[name] = Write(self.seen[name].version, self.wall, self.monotonic)
        if not free:
            self.no_budget_is_exceeded_by(name)

    def findings_go(self, going: list[str]) -> None:
        for name in going:
            if name not in self.writing:
                self.allocator.withdraw(name)
                self.wants.pop(name, None)

    def carry_out(self, name: str, write: Write) -> bool:
        if not self.may_land(name, write):
            return False
        real = self.server[name]
        stamp = real.tainted_at if real.ours else write.stamp
        self.server[name] = replace(real, version=real.version + 1, ours=True, tainted_at=stamp)
        self.unseen_since.setdefault(name, self.monotonic)
        return True

    def writes_are_answered(self, answered: list[str]) -> None:
        for name in answered:
            write = self.writing.pop(name, None)
            if write is None:
                continue
            landed = self.carry_out(name, write)
            self.deliver(name)
            if landed:
                self.allocator.confirm(name)
            else:
                self.allocator.release(name)

    def writes_are_refused(self, refused: list[str]) -> None:
        for name in refused:
            if self.writing.pop(name, None) is not None:
                self.allocator.release(name)

    def writes_are_not_answered(self, lost: list[str]) -> None:
        for name in lost:
            write = self.writing.pop(name, None)
            if write is not None:
                self.unknown[name] = write
                self.allocator.mark_uncertain(name, str(write.version))

    def some_are_carried_out_after_all(self, late: list[str]) -> None:
        for name in late:
            for writes in (self.unknown, self.former):
                if name in writes:
                    self.carry_out(name, writes[name])
                    del writes[name]

    def the_leader_dies(self, landed: set[str]) -> None:
        for name, write in [*self.writing.items(), *self.unknown.items(), *self.former.items()]:
            if name in landed:
                self.carry_out(name, write)
        self.writing, self.unknown, self.former = {}, {}, {}
        self.a_leader_begins()

    def the_leader_is_stopped(self, wanting: set[str]) -> None:
        """Its writes come later, or never. wanting: nodes that the next leader would taint besides."""
        self.former |= {**self.unknown, **self.writing}
        self.writing, self.unknown = {}, {}
        self.a_leader_begins()
        for name in wanting | self.former.keys():
            if name in self.server:
                self.allocator.block(name, str(self.server[name].version))

    def who_is_blocked_is_written(self, written: list[str]) -> None:
        for name in written:
            if self.allocator.blocked(name):
                self.others_write(name)
                self.deliver(name)
                assert not self.allocator.blocked(name)

    def nodes_are_released(self, released: list[str]) -> None:
        for name in released:
            if name not in self.writing:
                self.others_write(name, ours=False)
                self.deliver(name)

    # the world

    def others_write(self, name: str, **fields: Any) -> None:
        real = self.server.get(name)
        if real is not None:
            self.server[name] = replace(real, version=real.version + 1, **fields)
            self.unseen_since.setdefault(name, self.monotonic)

    def the_watch_delivers(self, seen: list[str]) -> None:
        for name in seen:
            self.deliver(name)

    def deliver(self, name: str) -> None:
        real = self.server.get(name)
        self.unseen_since.pop(name, None)
        if real is None:
            self.seen.pop(name, None)
            self.wants.pop(name, None)
            self.allocator.note(name, None)
            return
        self.seen[name] = real
        self.allocator.note(name, real.standing, str(real.version))
        if real.ours:
            self.wants.pop(name, None)

    def others_change_nodes(self, touched: list[str], what: str, rack: str, seen: bool) -> None:
        for name in touched:
            self.others_write(name, **(BY_OTHERS[what] or {"rack": rack, "gpu": rack != "r1"}))
            if seen:
                self.deliver(name)

    def a_node_goes_or_comes(self, name: str, rack: str) -> None:
        self.serial += 1
        if self.server.pop(name, None) is None:
            self.server[name] = Real(1000 * self.serial, rack, gpu=True)
        self.deliver(name)

    def the_policy_is_edited(self, which: str, budget: dict[str, Any]) -> None:
        self.pools[which] = pool(which, budget)
        self.allocator.policy(self.pools.values())

    def time_passes(self, seconds: float, jump: int) -> None:
        for name, since in list(self.unseen_since.items()):
            if since + BEHIND_S <= self.monotonic + seconds:
                self.deliver(name)
        self.wall += seconds + jump
        self.monotonic += seconds

    # what holds always

    @invariant()
    def who_has_room_is_called_worst_first(self) -> None:
        called = self.allocator.ready(self.wall)
        assert called == self.served(self.worst_first(), self.wall)
        assert self.allocator.waiting == len(self.wants)

    @invariant()
    def time_makes_no_room_before_it_was_said(self) -> None:
        if self.allocator.ready(self.wall) or self.held():
            return
        at = self.allocator.next_room_at(self.wall)
        assert at > self.wall
        for later in (self.wall + 1.0, (self.wall + min(at, self.wall + 9e3)) / 2, min(at, self.wall + 9e3) - 1.0):
            if self.wall < later < at:
                assert not self.served(self.worst_first(), later)

    @invariant()
    def what_is_shown_is_what_is_there(self) -> None:
        held = set(self.held())
        shown = {(row.pool, row.domain, row.what): row for row in self.allocator.usage(self.wall)}
        for name in self.pools:
            everyone = self.members(name)
            row = shown[name, "", "tainted"]
            assert row.used == len([other for other in everyone if other in held or self.seen[other].ours])
            assert row.waiting == len([other for other in everyone if other in self.wants])
            assert row.left is None or (row.limit is not None and row.left == max(row.limit - row.used, 0))

    def teardown(self) -> None:
        """When nothing is under way any more, every promise is void or kept, and nobody waits who has room."""
        if not hasattr(self, "allocator"):
            return
        self.writes_are_answered(NAMES)
        self.unknown, self.former = {}, {}
        self.time_passes(UNCERTAIN_S + 10, 0)
        for _ in NAMES:
            self.who_is_called_asks("answered")
        assert not self.allocator.ready(self.wall)
        assert not self.held()


Fleet.TestCase.settings = settings(
    max_examples=15, stateful_step_count=40, suppress_health_check=list(HealthCheck), deadline=None
)
TestFleet = Fleet.TestCase
