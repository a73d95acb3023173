"""Whatever order pods end in, and whoever leads: few rejections and no tenant take a node away."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.tainter.outcomes.leading_tainter import REJECTED, Cluster
from tests.tainter.outcomes.pod_objects import ended

from muster_tainter.outcomes.kinds import KINDS

HOST_KINDS = {kind.name for kind in KINDS if not kind.tenant}


class AnyPods(RuleBasedStateMachine):
    """Pods of few owners end in any order, on few nodes, between changes of the leader."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(size=5)
        self.host_failures: dict[str, int] = {}

    @rule(
        node=st.integers(0, 4),
        owner=st.integers(0, 3),
        how=st.sampled_from(["Succeeded", "Error", "OOMKilled", "Rejected", "OutOfcpu", "Evicted"]),
        after=st.sampled_from([0.0, 1.0, 12.0, 3600.0, 200_000.0]),
        skew=st.sampled_from([0.0, -1e6, 1e6]),
    )
    def end(self, node: int, owner: int, how: str, after: float, skew: float) -> None:
        cluster, name = self.cluster, f"n{node}"
        cluster.now += after
        fields: dict[str, Any] = {"namespace": f"ns{owner}", "gpus": 1, "owner": ("Job", f"job-{owner}")}
        if how == "Rejected":
            fields = REJECTED | fields
            self.host_failures[name] = self.host_failures.get(name, 0) + 1
        elif how == "Succeeded":
            fields |= {"phase": how, "containers": [ended("Completed", exit_code=0, at=cluster.now + skew)]}
        elif how in ("OutOfcpu", "Evicted"):
            fields |= {"phase": "Failed", "reason": how}
        else:
            fields |= {"phase": "Failed", "containers": [ended(how, at=cluster.now + skew)]}
        cluster.end(name, **fields)

    @rule()
    def look(self) -> None:
        self.cluster.watch.look()

    @precondition(lambda self: self.cluster.findings.found)
    @rule()
    def close(self) -> None:
        """A person clears what was found last."""
        cluster = self.cluster
        node, finding = cluster.findings.found[-1]
        cluster.now += 1
        cluster.clear(node, finding, at=cluster.now)
        cluster.watch.look()
        self.host_failures[node] = 0

    @rule()
    def change_leader(self) -> None:
        self.cluster.lead()

    @invariant()
    def only_the_hosts_kinds_fail_nodes(self) -> None:
        for node, finding in self.cluster.findings.found:
            assert finding.component == "host"
            assert (finding.verdict == "FAIL") == (finding.reason in HOST_KINDS)
            assert node in self.cluster.nodes

    @invariant()
    def no_node_is_found_on_one_rejection(self) -> None:
        for node, (findings, _) in ((name, self.cluster.findings.of(name)) for name in self.cluster.nodes):
            if any(key[2] in HOST_KINDS for key in findings):
                assert self.host_failures.get(node, 0) != 1

    @invariant()
    def numbers_of_a_node_only_rise(self) -> None:
        last: dict[tuple[str, str], int] = {}
        for node, finding in self.cluster.findings.found:
            key = (node, finding.reason)
            assert finding.occurrence >= last.get(key, 0)
            last[key] = finding.occurrence


TestAnyPods = AnyPods.TestCase
TestAnyPods.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
