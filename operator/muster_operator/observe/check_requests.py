"""Checks that jobs request from agents. Only NodeHealths with a request of a job are watched.

Such NodeHealths have a label, so the cache is empty while no job waits for its nodes, however large the fleet is, and a
new leader finds earlier requests. All jobs share one field manager, and each write is conditional on the version that
it is based on, so two jobs on one node do not remove each other's requests.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from muster_kube import nodehealth
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Metadata
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import (
    REQUESTS_LIMIT,
    CheckRequest,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    RequestAnswer,
)
from muster_kube.nodehealth_requests import Requester, RequestWriter
from muster_operator.job import names

JOBS_LIMIT = REQUESTS_LIMIT // 2
"""Requests of jobs in one NodeHealth. The rest is for the proofs of the tainter and for people, so that a user who may
create IPUJobs cannot delay a node's return to use."""

RequestAnswers = Mapping[str, Mapping[str, RequestAnswer | None]]
"""By node, then by the id of the request."""


def is_ours(request: CheckRequest) -> bool:
    return request.id.startswith(names.REQUEST) and request.by.startswith(names.REQUESTER_PREFIX)


REQUESTER = Requester(names.CHECKER, names.CHECKED, is_ours)


class NodeCheckRequests:
    """on_change: called with a job (``namespace/name``) that must be reconciled."""

    def __init__(self, client: KubeClient, on_change: Callable[[str], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._nodes: dict[str, set[str]] = {}  # nodes with requests, by the job's uid
        self.reflector: Reflector[NodeHealth] = Reflector(
            client,
            nodehealth.PATH,
            NodeHealth,
            on_change=self._changed,
            params={"labelSelector": names.CHECKED},
            transform=_project_health,
        )
        self._writer = RequestWriter(client, REQUESTER, self.reflector.observe)

    def of_job(self, uid: str) -> RequestAnswers | None:
        """None: not known yet."""
        if not self.reflector.synced:
            return None
        prefix = names.request_prefix(uid)
        found: dict[str, dict[str, RequestAnswer | None]] = {}
        for node in self._nodes.get(uid, ()):
            health = self.reflector.store[node]
            answers = {each.id: each for each in health.status.answers if each.finished}
            ids = [each.id for each in health.spec.requests if each.id.startswith(prefix)]
            found[node] = {name: answers.get(name) for name in ids}
        return found

    def jobs(self) -> Iterator[tuple[str, str]]:
        """Jobs with requests: (``namespace/name``, uid), possibly more than once."""
        for health in self.reflector.store.values():
            yield from map(_job_of, health.spec.requests)

    async def ask(self, node: str, request: CheckRequest) -> str:
        """Request checks of a node. Returns why that is impossible now; empty on success. Raises ApiError; Conflict on
        a concurrent write."""
        try:
            health = await self._client.get(f"{nodehealth.PATH}/{node}", type=NodeHealth)
        except NotFound:
            return "the node has no NodeHealth"
        if any(each.id == request.id for each in health.spec.requests):
            self.reflector.observe(health)
            return ""
        if len(health.spec.requests) >= REQUESTS_LIMIT:
            return f"the node's NodeHealth already has {REQUESTS_LIMIT} requests"
        ours = [each for each in health.spec.requests if is_ours(each)]
        if len(ours) >= JOBS_LIMIT:
            return f"the node's NodeHealth already has {JOBS_LIMIT} requests of jobs"
        await self._writer.ask(health, [*ours, request])
        return ""

    async def withdraw(self, node: str, uid: str, keep: Collection[str] = ()) -> bool:
        """Remove all requests of the job except those with an id in ``keep``. Returns whether there were any. Raises
        ApiError as above."""
        try:
            health = await self._client.get(f"{nodehealth.PATH}/{node}", type=NodeHealth)
        except NotFound:
            return False
        prefix = names.request_prefix(uid)
        ours = [each for each in health.spec.requests if is_ours(each)]
        kept = [each for each in ours if not each.id.startswith(prefix) or each.id in keep]
        if len(kept) == len(ours):
            return False  # the watch reports it
        await self._writer.delete(health, keep=kept)
        return True

    def _changed(self, node: str, old: NodeHealth | None, new: NodeHealth | None) -> None:
        for request in old.spec.requests if old is not None else ():
            if (nodes := self._nodes.get(_job_of(request)[1])) is not None:
                nodes.discard(node)
                if not nodes:
                    del self._nodes[_job_of(request)[1]]
        for request in new.spec.requests if new is not None else ():
            self._nodes.setdefault(_job_of(request)[1], set()).add(node)
        if old is not None and new is not None and (old.spec, old.status) == (new.spec, new.status):
            return
        concerned = [request for health in (old, new) if health is not None for request in health.spec.requests]
        for key in sorted({_job_of(request)[0] for request in concerned}):
            self._on_change(key)


def _job_of(request: CheckRequest) -> tuple[str, str]:
    """(``namespace/name``, uid) of a job's request."""
    uid = request.id.removeprefix(names.REQUEST).rsplit("-", 2)[0]
    return request.by.removeprefix(names.REQUESTER_PREFIX), uid


def _project_health(health: NodeHealth) -> NodeHealth:
    """Drops findings of agents and requests of others, which the operator does not need."""
    requests = tuple(each for each in health.spec.requests if is_ours(each))
    ids = {each.id for each in requests}
    meta = health.metadata
    return NodeHealth(
        metadata=Metadata(name=meta.name, uid=meta.uid, resource_version=meta.resource_version),
        spec=NodeHealthSpec(requests=requests),
        status=NodeHealthStatus(answers=tuple(each for each in health.status.answers if each.id in ids)),
    )
