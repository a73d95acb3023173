"""What Kubernetes reports on Muster's DeviceTaintRules of a node, read with the rights of the user."""

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Forbidden
from muster_kube.api.objects import Api, NodeCondition
from muster_tainter.devices.api_versions import NotServed, find_api
from muster_tainter.devices.rules.taint_rule import PREVIEW_EFFECT, SELECTOR, DeviceTaintRule
from muster_tainter.faults.record.node_record import NodeRecord

EVICTION = "EvictionInProgress"  # the condition in which the controller-manager reports
_LINE_LIMIT = 512
_LIST_S = 10.0


class _RuleStatus(Api, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()


class ReportedRule(DeviceTaintRule, frozen=True):
    """A rule with its status."""

    status: _RuleStatus = _RuleStatus()

    @property
    def report(self) -> str:
        """How many pods the rule evicts, or would evict; empty until Kubernetes has reported."""
        return next((each.message for each in self.status.conditions if each.type == EVICTION), "")


def _may_evict(rule: ReportedRule) -> bool:
    """Of the others Kubernetes reports only that they evict nobody."""
    return rule.spec.taint.effect in (PREVIEW_EFFECT, "NoExecute")


async def read_rule_reports(client: KubeClient, name: str, memory: NodeRecord) -> list[str]:
    """A line for each rule that evicts pods, or would, once Kubernetes has reported on it.

    memory: the node's record; without a device in it, nothing is read
    """
    if not any(fault.device for fault in memory.open):
        return []
    found: list[ReportedRule] = []
    try:
        path = (await find_api(client)).rules
        async for page in client.list_pages(path, ReportedRule, params={"labelSelector": SELECTOR}, timeout_s=_LIST_S):
            found += [rule for rule in page.items if rule.node == name and rule.report and _may_evict(rule)]
    except NotServed:
        return []
    except Forbidden:
        return ["DeviceTaintRules are not shown: needs the right to list devicetaintrules.resource.k8s.io"]
    except ApiError as error:
        return [f"DeviceTaintRules are not shown: {error}"]
    return [
        shorten(
            f"{rule.component}: DeviceTaintRule {rule.metadata.name} has the effect {rule.spec.taint.effect}; "
            f"Kubernetes reports: {rule.report}",
            _LINE_LIMIT,
        )
        for rule in sorted(found, key=lambda rule: (rule.component, rule.metadata.name))
    ]
