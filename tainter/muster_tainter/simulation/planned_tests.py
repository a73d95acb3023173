"""Heavy checks of healthy nodes by the real plan: which are due, which node is next, and what they find.

As with the agent, a check is due at a fixed phase of its period, unless it has just run, and after a boot. Nodes with a
job are only counted: nothing is requested there.
"""

from collections import Counter
from functools import partial

from muster_checks.base.vocabulary import Verdict
from muster_kube.nodehealth import CheckRequest
from muster_tainter.faults.record.check_history import has_measured, is_ours, note_answer
from muster_tainter.simulation.event_queue import NEVER, Turn
from muster_tainter.simulation.hardware import Hardware
from muster_tainter.simulation.world import Machine, World
from muster_tainter.verification.fleet_plan import NodeTestState, PlanStep, node_test_state, plan_fleet, request_for
from muster_tainter.verification.fleet_plan_executor import time_limit_s


class PlannedTests:
    """Nothing, where no heavy check is due by the fleet file and no pool tests nodes after their jobs."""

    def __init__(self, world: World, hardware: Hardware) -> None:
        self._world = world
        self._hardware = hardware
        self._states: dict[str, NodeTestState] = {}  # of nodes that have a request, or may get one
        self._pools: Counter[str] = Counter()
        self._look_at = NEVER
        self._periods = world.fleet.agents.planned
        self._is_on = bool(self._periods) or any(pool.testing.post_flight for pool in world.policy.pools)
        if not self._is_on:
            return
        for machine in world.machines.values():
            pool = world.policy.pool_of(machine.node.labels)
            self._pools[pool.name if pool is not None else ""] += 1
            machine.agent.planned = tuple(self._periods)
            if machine.agent.tested:
                machine.agent.tested = tuple(dict.fromkeys((*machine.agent.tested, *self._periods)))
            for check, period_s in self._periods.items():
                phase = world.random("phase", machine.name, check).random()
                world.events.at(world.begin + phase * period_s, Turn.REPORT, partial(self._fall_due, machine, check))

    def _fall_due(self, machine: Machine, check: str) -> None:
        world, agent, period_s = self._world, machine.agent, self._periods[check]
        is_fresh = check in agent.ran and world.now - agent.ran[check] < period_s / 2
        if check not in agent.due and not is_fresh:
            agent.due = (*agent.due, check)
            world.testable[machine.name] = None
        world.events.at(world.now + period_s, Turn.REPORT, partial(self._fall_due, machine, check))

    def look(self) -> bool:
        """Plan and carry out what the changes of this moment require; whether a request was made or has ended."""
        world = self._world
        names, world.testable = world.testable, {}
        if not self._is_on or not sum(self._look_at_node(world.machines[name]) for name in names):
            return False
        others = self._pools.copy()
        others.subtract(state.pool for state in self._states.values())
        made = plan_fleet(self._states.values(), world.policy, world.now, time_limit_s, others)
        for step in made.steps:
            self._carry_out(world.machines[step.node], step)
        self._look_again()
        return bool(made.steps)

    def _look_at_node(self, machine: Machine) -> bool:
        """Whether the node has, had or wants a check."""
        world, agent, name = self._world, machine.agent, machine.name
        known = self._states.pop(name, None) is not None
        if machine.job is not None:
            for request in filter(is_ours, agent.requests):
                self._answer(machine, request)  # the agent ends the check as soon as it sees the job
        if machine.job is None or agent.plans_something:
            state = node_test_state(world.loop.nodes[name], agent.health(for_plan=True), world.policy)
            if state.request is not None or (state.idle and state.wants):
                self._states[name] = state
                return True
        return known

    def _look_again(self) -> None:
        """When a node that waits after a result that measured nothing may be next."""
        world = self._world
        afters = [want.after for state in self._states.values() for want in state.wants if want.after > world.now]
        at = min(afters, default=NEVER)
        if at < self._look_at or self._look_at <= world.now:
            self._look_at = at
            if at < NEVER:
                world.events.at(at, Turn.LOOK, self._wake)

    def _wake(self) -> None:
        self._world.testable.update(dict.fromkeys(self._states))

    def _carry_out(self, machine: Machine, step: PlanStep) -> None:
        world, agent = self._world, machine.agent
        if step.check:
            request = request_for(step.check, str(int(world.now)), world.now)
            agent.requests = (*agent.requests, request)
            at = world.now + min(world.fleet.agents.heavy, time_limit_s(step.check))
            world.events.at(at, Turn.ANSWER, partial(self._answer, machine, request))
        elif step.end is not None:
            answer = step.answer
            agent.requests = tuple(each for each in agent.requests if each is not step.end)
            if step.noted:
                health, pause_s = agent.health(for_plan=True), world.policy.testing.pause
                agent.tests = note_answer(
                    agent.tests, health, step.end, answer, pause_s=pause_s, now=world.now, new=False
                )
            if answer is not None and has_measured(answer):
                world.tally.tests += 1
        world.testable[machine.name] = None

    def _answer(self, machine: Machine, request: CheckRequest) -> None:
        world, agent, check = self._world, machine.agent, request.checks[0]
        if request not in agent.requests or agent.has_answered(request):
            return
        verdict, reason = Verdict.PASS, ""
        is_broken = any(part.row.hidden and part.row.check == check for part in machine.broken)
        if machine.job is not None:
            verdict, reason = Verdict.UNKNOWN, "Busy"
        elif is_broken and world.random("planned", machine.name, request.id).random() < world.fleet.agents.finds:
            verdict, reason = Verdict.FAIL, "Simulated"
        agent.answer(request, verdict, reason, world.now)
        if verdict == Verdict.FAIL:
            world.tally.found += self._hardware.find_hidden(machine, check)
        world.testable[machine.name] = None
