"""Evicts a pod by the eviction API, so the API server enforces PodDisruptionBudgets."""

import logging

import msgspec
from prometheus_client import Counter

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, NotFound, TooManyRequests
from muster_kube.api.objects import Metadata

log = logging.getLogger(__name__)


class _Resource(msgspec.Struct, frozen=True):
    name: str
    version: str = ""


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class PodEviction:
    """evictions: counts by result: evicted, gone, refused by a PodDisruptionBudget, failed"""

    def __init__(self, client: KubeClient, evictions: Counter) -> None:
        self._client = client
        self._evictions = evictions
        self._version = ""  # the Eviction version that this API server supports

    async def evict(self, pod: Metadata, node: str) -> str:
        """The refusal; empty if the pod is evicted or gone. node: for the log. Raises ApiError if the API server's
        resources cannot be read."""
        body = {
            "apiVersion": await self.version(),
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # a StatefulSet may have created its next pod with the same name on another node
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        try:
            await self._client.create(path, body, type=msgspec.Raw)
        except (NotFound, Conflict):
            self._evictions.labels("gone").inc()
            return ""
        except TooManyRequests as error:
            self._evictions.labels("refused").inc()
            return error.message
        except ApiError as error:  # such as 500 if two budgets select the pod, 403 in a terminating namespace
            self._evictions.labels("failed").inc()
            return f"{error.reason}: {error.message}"
        self._evictions.labels("evicted").inc()
        log.info("evicted %s/%s from %s", pod.namespace, pod.name, node)
        return ""

    async def version(self) -> str:
        """``policy/v1``, or ``policy/v1beta1`` before Kubernetes 1.22, according to the core group's resource list.
        Raises ApiError."""
        if not self._version:
            found = await self._client.get("/api/v1", type=_Resources)
            version = next((each.version for each in found.resources if each.name == "pods/eviction"), "")
            self._version = f"policy/{version or 'v1beta1'}"
        return self._version
