"""A node under repair, look by look: what tests of repairs do with :mod:`tests.tainter.repair.fake_cluster`."""

import asyncio

from tests.tainter.repair.fake_cluster import FakeCluster

from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.repair_executor import RepairExecutor

RULES = """
rules: [{name: all, match: {class: [reset, reboot, replace, contact]}, action: taint}]
pools:
"""
JOB = "job: {template: {spec: {template: {spec: {nodeName: '${node}', containers: [{name: c, args: ['${device}']}]}}}}}"
POLICY = parse_policy(f"""{RULES}
  - name: all
    selector: {{}}
    repair:
      atOnce: 1
      reset: {{{JOB}, attempts: 2, wait: 10m, escalate: reboot}}
      reboot: {{{JOB}, attempts: 1, wait: 20m}}
""")
LABEL = "muster.dev/repair"


def with_repair(text: str) -> Policy:
    return parse_policy(f"{RULES}  - name: all\n    selector: {{}}\n    repair: {text}")


def one_node(*classes: str) -> FakeCluster:
    world = FakeCluster()
    world.add("n1")
    for fault_class in classes:
        world.open_fault("n1", fault_class)
    return world


def go_on(
    world: FakeCluster, policy: Policy = POLICY, leader: RepairExecutor | None = None, rounds: int = 6
) -> RepairExecutor:
    """Looks until nothing changes any more."""

    async def run() -> RepairExecutor:
        leading = leader or world.leader(policy)
        if leader is None:
            await leading.begin()
        for _ in range(rounds):
            world.catch_up()
            leading.look_at_all()
            leading._poll_at = 0.0
            await leading.look()
        return leading

    return asyncio.run(run())


def attempt(world: FakeCluster, fault_class: str = "reset", name: str = "n1") -> tuple[int, str]:
    known = world.memory(name).attempts[fault_class]
    return known.n, known.stage
