"""A Node whose taint is withheld, as the tainter writes it."""

from muster_kube.api.objects import Metadata, Node, NodeStatus
from muster_tainter.faults.messages import node_condition
from muster_tainter.faults.node_report import NodeReport
from muster_tainter.faults.record.node_record import NodeRecord
from muster_tainter.policy.file import parse_policy


def node_without_its_taint(name: str, why: str) -> Node:
    policy = parse_policy("rules: []")
    condition = node_condition(NodeRecord(), NodeReport(known=False), policy, why, "its agent is silent")
    return Node(metadata=Metadata(name=name), status=NodeStatus(conditions=(condition,)))
