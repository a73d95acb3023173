"""Random sequences of faults, proofs, people, drivers and policies for one node of four GPUs, with a leader that is
killed before or after any write of a rule, or between the Node and the rules.

The invariant: a GPU that was protected stays protected until its fault is closed, by its own rules or by the taint of
its node; and when everything has settled there is no rule without a fault, and no fault without a rule or a taint.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.tainter.devices.device_world import (
    POLICY,
    Died,
    FakeRules,
    Leader,
    device,
    finding,
    health,
    protected,
    resource_slice,
)

from muster_kube.api.errors import Forbidden, Unreachable
from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import ReportedFinding
from muster_tainter.faults.policy_match import match_as_node
from muster_tainter.faults.record.node_record import read_record

GPUS = range(4)
ERRORS: dict[type[BaseException], Callable[[], BaseException]] = {
    Died: Died,
    Forbidden: lambda: Forbidden(403, "Forbidden", "no", ""),
    Unreachable: lambda: Unreachable("no", ""),
}
MODES = [POLICY, *(POLICY.replace("quarantine: rules", f"quarantine: {mode}") for mode in ("off", "preview"))]
SLICES: list[dict[str, Any]] = [
    {"s": resource_slice()},
    {"s": resource_slice(devices=[device(n, f"card-{n}") for n in GPUS])},
    {"s": resource_slice(devices=[device(n) for n in (0, 0, 1, 2, 3)])},
    {},
]


class OneNode(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.api = FakeRules({"n1": Node(metadata=Metadata(name="n1", resource_version="1"))})
        self.policy = POLICY
        self.slices = SLICES[0]
        self.findings: dict[tuple[int, str], ReportedFinding] = {}
        self.counter = 0
        self.boot = 1
        self.idle = False
        self.unavailable: str | None = ""
        self.clock = 1000.0
        self.protected: set[str] = set()
        self.by_people: set[str] = set()
        self.restart()

    # the node

    @rule(
        number=st.sampled_from(GPUS),
        fault_class=st.sampled_from(["reset", "reset", "replace", "reboot"]),
        reason=st.sampled_from(["Xid95", "First"]),
    )
    def fires(self, number: int, fault_class: str, reason: str) -> None:
        self.counter += 1
        self.findings[number, reason] = finding(number, fault_class, self.counter, reason=reason)

    @rule()
    def reboots(self) -> None:
        self.boot += 1
        self.findings = {key: each for key, each in self.findings.items() if each.fault_class == "replace"}

    @rule(idle=st.booleans())
    def jobs_come_and_go(self, idle: bool) -> None:
        self.idle = idle

    # drivers, people, the API

    @rule(slices=st.sampled_from(SLICES))
    def driver_publishes(self, slices: dict[str, Any]) -> None:
        self.slices = slices
        self.leader.see_slices(slices)

    @rule(policy=st.sampled_from(MODES))
    def policy_is_replaced(self, policy: str) -> None:
        self.policy = policy
        self.leader.use(policy)

    @rule(unavailable=st.sampled_from(["", "", None, "not served"]))
    def api_changes(self, unavailable: str | None) -> None:
        self.leader.unavailable = self.unavailable = unavailable

    @rule(delete=st.booleans(), data=st.data())
    def person_changes_a_rule(self, delete: bool, data: st.DataObject) -> None:
        if not self.api.rules:
            return
        name = data.draw(st.sampled_from(sorted(self.api.rules)))
        self.by_people.add(self.api.rules[name]["metadata"]["annotations"]["muster.dev/component"])
        if delete:
            del self.api.rules[name]
        else:
            self.api.edit(name, "None")
        self.look()

    @rule(seconds=st.sampled_from([1.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds
        self.leader.clock = self.clock

    # the leader

    def restart(self) -> None:
        self.leader = Leader(self.api, self.slices, self.policy)
        self.leader.unavailable, self.leader.clock = self.unavailable, self.clock
        self.leader.now = 1.8e9 + self.clock

    @rule()
    def leader_is_killed(self) -> None:
        self.restart()

    @rule()
    def watch_delivers(self) -> None:
        self.leader.see_rules()

    @rule(withhold=st.sampled_from(["", "", "budget: full", "paused"]))
    def leader_decides(self, withhold: str) -> None:
        self.leader.now = 1.8e9 + self.clock
        self.leader.apply(self.leader.decide(self.health(), withhold))
        self.look()

    @rule(
        at=st.integers(0, 3),
        applied=st.booleans(),
        error=st.sampled_from([None, None, Died, Forbidden, Unreachable]),
        patched=st.sampled_from(["first", "last", "never"]),
    )
    def leader_patches_and_writes_at_once(self, at: int, applied: bool, error: type[Any] | None, patched: str) -> None:
        """The PATCH of the Node arrives before the rules, after them, or fails."""
        self.leader.now = 1.8e9 + self.clock
        decision = self.leader.decide(self.health())
        ahead = self.leader.write_ahead(decision)
        if patched == "first":
            self.api.nodes["n1"] = decision.applied(self.api.nodes["n1"])
        self.api.strike = self.striking(at, applied, error)
        try:
            asyncio.run(ahead)
        except Died:
            self.restart()
        except (Forbidden, Unreachable):
            pass
        self.api.strike = lambda _applied: None
        if patched == "last":
            self.api.nodes["n1"] = decision.applied(self.api.nodes["n1"])
        self.look()

    @rule(
        at=st.integers(0, 3),
        applied=st.booleans(),
        error=st.sampled_from([None, Died, Forbidden, Unreachable]),
    )
    def leader_writes(self, at: int, applied: bool, error: type[Any] | None) -> None:
        """The write number ``at`` fails, before or after it was applied."""
        self.api.strike = self.striking(at, applied, error)
        try:
            asyncio.run(self.leader.write_rules())
        except Died:
            self.restart()
        except (Forbidden, Unreachable):
            pass
        self.api.strike = lambda _applied: None
        self.look()

    def striking(self, at: int, applied: bool, error: type[Any] | None) -> Callable[[bool], None]:
        left = [at]

        def strike(after: bool) -> None:
            self.look()
            if error is None or (error is Forbidden and after):
                return
            if after == applied:
                left[0] -= 1
                if left[0] < 0:
                    raise (
                        Died
                        if error is Died
                        else error(403, "Forbidden", "no", "")
                        if error is Forbidden
                        else error("no", "")
                    )

        return strike

    def health(self) -> Any:
        return health(*self.findings.values(), boot=f"boot-{self.boot}", idle=self.idle)

    @rule()
    def settles(self) -> None:
        self.leader.now = 1.8e9 + self.clock
        asyncio.run(self.leader.settle(self.health()))
        self.look()
        node = self.api.nodes["n1"]
        memory = read_record(node)
        components = {fault.component for fault in memory.open}
        ruled = {each["metadata"]["annotations"]["muster.dev/component"] for each in self.api.rules.values()}
        assert ruled <= {fault.component for fault in memory.open if fault.device}, "a rule without a fault"
        assert components <= protected(self.leader), "a fault without a rule or a taint"
        assert not self.leader.decide(self.health()).writes

    # the invariant

    def look(self) -> None:
        """Whoever was protected and has an open fault is protected still."""
        policy, safe = self.leader.fleet.policy(), protected(self.leader)
        memory = read_record(self.api.nodes["n1"])
        needed = {fault.component for fault in memory.open if match_as_node(fault, policy).taint is not None}
        # a rule that was written ahead of a Node that was then not written goes if there is no room for it any more
        ahead = set() if memory.ours else {fault.component for fault in memory.open if not fault.device}
        lost = (self.protected & needed) - safe - self.by_people
        assert not lost, f"unprotected: {lost}"
        self.protected = (needed & safe) - ahead
        self.by_people &= needed - safe

    @precondition(lambda self: hasattr(self, "api"))
    @invariant()
    def every_rule_names_one_device(self) -> None:
        for each in self.api.rules.values():
            assert all(each["spec"]["deviceSelector"][key] for key in ("driver", "pool", "device"))


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
