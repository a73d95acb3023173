"""Finds the node of a pod's log line: from the label, else from the pod object.

Pod lines alone are never a failure: anybody who runs a pod can write to its log.
"""

import re
from collections import OrderedDict
from collections.abc import Callable

from muster_checks.base.declaration import Sign
from muster_checks.base.vocabulary import Origin, shorten
from muster_checks.containerlog.patterns import PatternHit
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Forbidden, Invalid, NotFound
from muster_kube.api.objects import Pod
from muster_tainter.policy.sections.sources import PodLines
from muster_tainter.sources.http_client import NS
from muster_tainter.sources.loki.response import LogEntry

CHECK = "podlog"
COMPONENT = "host"
KNOWN_FOR_S = 60.0  # a StatefulSet may create a pod with the same name on another node
PODS_LIMIT = 4096

# names of namespaces and pods; nothing else becomes part of an API path
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def pod_of(entry: LogEntry, rule: PodLines) -> str:
    """``namespace/name``; empty if the labels do not contain it."""
    namespace, name = entry.labels.get(rule.namespace_label, ""), entry.labels.get(rule.pod_label, "")
    return f"{namespace}/{name}" if is_pod_name(namespace, name) else ""


def is_pod_name(namespace: str, name: str) -> bool:
    """Whether a pod may have this name; then it is safe in an API path."""
    return _NAME.fullmatch(namespace) is not None and _NAME.fullmatch(name) is not None


def sign_of(entry: LogEntry, hit: PatternHit, text: str, pod: str) -> Sign:
    line = f"{hit.prefix}: {text}" if hit.prefix else text
    return Sign(
        component=COMPONENT,
        reason=hit.reason,
        verdict=hit.verdict,
        message=shorten(f"pod {pod or 'unknown'}: {line.strip()}"),
        at=entry.at_ns / NS,
        fault_class=hit.fault_class,
        origin=Origin.USER,
        line=text,
    )


class PodNodeCache:
    """Looks up the node of a pod; clock: monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def __call__(self, pod: str) -> str:
        """Its node; empty if the pod is gone or cannot be read. Raises ApiError: try again later."""
        known = self._known.get(pod)
        if known is not None and known[1] > self._clock():
            return known[0]
        namespace, _, name = pod.partition("/")
        try:
            node = (await self._client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", type=Pod)).spec.node_name
        except (NotFound, Forbidden, Invalid):
            node = ""
        self._known[pod] = (node, self._clock() + KNOWN_FOR_S)
        self._known.move_to_end(pod)
        if len(self._known) > PODS_LIMIT:
            self._known.popitem(last=False)
        return node
