"""Writes the fleet plan's request and its history into NodeHealths."""

import secrets
from collections.abc import Callable

from muster_kube.api.client import KubeClient
from muster_kube.nodehealth import CheckRequest, NodeHealth
from muster_kube.nodehealth_requests import Requester, RequestWriter
from muster_tainter.faults.record.check_history import (
    ANNOTATION,
    MANAGER,
    TESTING_LABEL,
    CheckHistory,
    encode_history,
    is_ours,
)
from muster_tainter.verification.fleet_plan import request_for

PLAN = Requester(MANAGER, TESTING_LABEL, is_ours, ANNOTATION)


class PlanRequests:
    """At most one request of the plan per node. unique: returns a different text each time."""

    def __init__(
        self,
        client: KubeClient,
        observe: Callable[[NodeHealth], None],
        *,
        unique: Callable[[], str] = lambda: secrets.token_hex(5),
    ) -> None:
        self._asking = RequestWriter(client, PLAN, observe)
        self._unique = unique

    def make(self, check: str, now: float) -> CheckRequest:
        return request_for(check, self._unique(), now)

    async def ask(self, health: NodeHealth, request: CheckRequest) -> None:
        """Raises ApiError; Conflict if ``health`` is outdated."""
        await self._asking.ask(health, [request], request.checks[0])

    async def delete(self, health: NodeHealth, past: CheckHistory) -> None:
        """Delete all requests of the plan and record ``past`` in the same write. Raises ApiError."""
        await self._asking.delete(health, encode_history(past))
