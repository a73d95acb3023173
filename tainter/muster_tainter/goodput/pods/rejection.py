"""Whether a node is to blame for a pod that it rejected for want of devices. Pure; the conditions are those of pod
outcomes."""

import msgspec

from muster_kube.api.objects import Node
from muster_tainter.goodput.pods.pod_facts import End, LedgerPod, PodFacts
from muster_tainter.outcomes.attempts import kind_on
from muster_tainter.outcomes.kinds import DEVICE_ALLOCATION


def facts_on(pod: LedgerPod, node: Node | None, *, listed: bool) -> PodFacts | None:
    """The facts of the pod, whose end is the node's if that offers the devices now, and the pod's own otherwise.

    node: None: it does not exist. listed: the pod came with a list, so it may have ended when its node offered others.
    """
    facts, rejection = pod.facts, pod.outcome
    if facts is None or rejection is None or node is None:
        return facts
    if kind_on(node, msgspec.structs.replace(rejection, listed=listed)) != DEVICE_ALLOCATION:
        return facts
    return msgspec.structs.replace(facts, end=End.NODE)
