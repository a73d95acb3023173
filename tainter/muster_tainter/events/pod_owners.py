"""Which objects created a pod: its controller and, for a ReplicaSet or Job, the controller of that."""

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Forbidden, NotFound
from muster_kube.api.objects import Api, Metadata, ObjectReference, OwnerReference
from muster_tainter.events.affected_pods import controller_of, is_middleman, owner_reference

_PLURALS = {"ReplicaSet": "replicasets", "Job": "jobs"}
DEPTH = 4  # two are usual, such as ReplicaSet and Deployment; a tenant can make a Job own itself


class _Owned(Api, frozen=True):
    metadata: Metadata


class PodOwners:
    """Reads each ReplicaSet and Job once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[str, OwnerReference | None] = {}

    async def of(self, pod: Metadata) -> list[ObjectReference]:
        """Innermost first, at most DEPTH, each of them once. Raises ApiError."""
        found: dict[str, ObjectReference] = {}
        owner = controller_of(pod)
        while owner is not None and owner.uid not in found and len(found) < DEPTH:
            found[owner.uid] = owner_reference(owner, pod.namespace)
            if not is_middleman(owner):
                break
            if owner.uid not in self._known:
                self._known[owner.uid] = await self._owner_of(owner, pod.namespace)
            owner = self._known[owner.uid]
        return list(found.values())

    async def _owner_of(self, owner: OwnerReference, namespace: str) -> OwnerReference | None:
        path = f"/apis/{owner.api_version}/namespaces/{namespace}/{_PLURALS[owner.kind]}/{owner.name}"
        try:
            return controller_of((await self._client.get(path, type=_Owned)).metadata)
        except (NotFound, Forbidden):
            return None
