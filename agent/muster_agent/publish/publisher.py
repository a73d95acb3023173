"""Keeps the status of the node's NodeHealth equal to the desired status, with one PATCH for each change.

Level-triggered: each step compares the object with the desired status and writes at most once. Outages, manual edits,
restored backups and writes by other agents all show as differences. Every write carries the resourceVersion that the
decision was based on.
"""

import asyncio
import logging
import random
from typing import Any, Protocol

import msgspec

from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_agent.findings.health_status import change_signature, claim_patch, same_but_for_time, status_patch
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.publish.node_claim import GRACE_S, ClaimAction, NodeClaim
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, Conflict, NotFound, TooManyRequests
from muster_kube.api.times import rfc3339
from muster_kube.controller.backoff import Backoff, Outage
from muster_kube.controller.token_bucket import TokenBucket
from muster_kube.nodehealth import PATH, Metadata, NodeHealth, NodeHealthStatus

log = logging.getLogger(__name__)

RIDE_ALONG_S = 600.0  # minimum interval of writes of counts and measurements only
PEACE_S = 600.0  # without edits by others for this long, the next one is reverted at once again
BURST, REFILL_S = 10, 1.0  # rate limit of all writes: burst, then seconds per write
RELEASE_TIMEOUT_S = 4.0  # app.STOP_S is a little longer


class StatusSource(Protocol):
    """Provides the desired status and receives the observed one: the Agent."""

    def desired(self) -> NodeHealthStatus | None:
        """The complete status without observedAt; None while it is not known yet."""

    def apply_health(self, health: NodeHealth) -> None:
        """Called with the object after each change, including own writes; must not raise."""

    def disown(self, status: NodeHealthStatus, *, published: bool) -> bool:
        """Called with a status that this process did not write, before it is overwritten. True if that changes the
        desired status. published: this process has written a status before."""


class OwnNodeHealth:
    """The node's NodeHealth on the API server. Both methods raise ApiError or ConfigError."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self.node = node
        self._client = client
        self._path = f"{PATH}/{node}"

    async def get(self) -> NodeHealth:
        return await self._client.get(self._path, type=NodeHealth)

    async def patch_status(self, body: dict[str, Any], *, timeout_s: float | None = None) -> NodeHealth:
        """Patch the status and return the object after the write."""
        return await self._client.patch(f"{self._path}/status", body, type=NodeHealth, timeout_s=timeout_s)


class Publisher:
    """Writes the desired status of ``source`` to ``own`` while ``claim`` holds the node."""

    def __init__(
        self,
        own: OwnNodeHealth,
        claim: NodeClaim,
        source: StatusSource,
        metrics: AgentMetrics,
        *,
        clock: AgentClock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self.claim = claim
        self._own = own
        self._node = own.node
        self._source = source
        self._metrics = metrics
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._wake = asyncio.Event()
        self._observed: NodeHealth | None = None
        self._baseline: NodeHealthStatus | None = None  # status of the object after our last write
        self._sent: NodeHealthStatus | None = (
            None  # status that we sent then; differs if the server's schema dropped fields
        )
        self._attempted: NodeHealthStatus | None = None  # sent, without an answer yet
        self._noticed_at: float | None = None  # when the oldest change not yet written was noticed
        self._unpublished_since: float | None = None
        self._last_write = float("-inf")
        self._rate_limit = TokenBucket(BURST, REFILL_S)
        self._retry = Backoff(base_s=0.1, cap_s=10.0)
        self._outage = Outage(clock.monotonic)
        self._failures = 0
        self._pausing = False  # after a failed write: nothing but the end of the pause leads to the next step
        self._error = ""
        self._heal = Backoff(base_s=1.0, cap_s=60.0)
        self._heals = 0
        self._heal_due: float | None = None
        self._last_heal = float("-inf")
        self._refused_by = ""

    @property
    def unpublished_since(self) -> float | None:
        """Since when (monotonic seconds) a change has not been published; None if all are."""
        return self._unpublished_since

    @property
    def error(self) -> str:
        """Why the last write failed, for people; empty if it succeeded."""
        return self._error

    @property
    def observed(self) -> NodeHealth | None:
        """The object as last seen; None if it does not exist."""
        return self._observed

    def notify_change(self) -> None:
        """The desired status may have changed. Cheap enough to call for every line of a log."""
        if self._noticed_at is None:
            self._noticed_at = self._clock.monotonic()
        self._wake.set()

    def notify_progress(self) -> None:
        """Counts or texts may have changed, which alone cause no immediate write."""
        self._wake.set()

    def observe(self, key: str, _old: NodeHealth | None, new: NodeHealth | None) -> None:
        """The reflector's ``on_change``."""
        if key != self._node:
            return
        if new is None:
            self._observed = None
            self._forget_baseline()
        else:
            self._observe_newer(new)
        self._wake.set()

    def observe_undecodable(self, _key: str | None, _raw: bytes, error: str) -> None:
        """The reflector's ``on_undecodable``: an edit has made the object undecodable, so it is overwritten."""
        log.warning("NodeHealth %s: cannot decode it, overwriting its status: %s", self._node, error)
        # without a resourceVersion, the write replaces any version
        self._observed = NodeHealth(metadata=Metadata(name=self._node), status=NodeHealthStatus(message="unreadable"))
        self._wake.set()

    async def run(self) -> None:
        """Forever; cancel to stop, then :meth:`release`."""
        while True:
            wait_s = await self.step()
            if wait_s is not None and wait_s <= 0:
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await (asyncio.Event() if self._pausing else self._wake).wait()
            except TimeoutError:
                pass

    async def step(self) -> float | None:
        """Compare, and write at most once. Returns seconds until the next step unless woken; None: only when woken."""
        self._wake.clear()
        self._pausing = False
        now = self._clock.monotonic()
        desired = self._source.desired()
        health = self._observed
        self._note_unpublished(desired, now)
        if health is None or health.metadata.deletion_timestamp:
            return None
        move = self.claim.decide(health.status.agent.pod_uid, health.status.observed_at, now)
        self._log_refusal(health)
        if move.do is ClaimAction.WAIT:
            return move.at - now
        if move.do is ClaimAction.CLAIM:
            return await self._write_paced(now, health, None)
        if desired is None:
            return None
        if (
            health.status not in (self._baseline, self._attempted)
            and self._source.disown(health.status, published=self._baseline is not None)
            and (disowned := self._source.desired()) is not None
        ):
            desired = disowned
        due = self._due(desired, health.status, now)
        if due is None:
            return None
        return due - now if due > now else await self._write_paced(now, health, desired)

    async def release(self) -> None:
        """Release the node so that the next agent need not wait, and publish pending changes. Tries once."""
        health = self._observed
        if health is None or not self.claim.held or health.status.agent.pod_uid != self.claim.pod_uid:
            return
        desired = self._source.desired()
        version = health.status.agent.version
        body = claim_patch("", version)
        if desired is not None and change_signature(desired) != change_signature(health.status):
            agent = msgspec.structs.replace(desired.agent, pod_uid="")
            body = status_patch(msgspec.structs.replace(desired, agent=agent, observed_at=rfc3339(self._clock.wall())))
        try:
            await self._own.patch_status(body, timeout_s=RELEASE_TIMEOUT_S)
        except (ApiError, ConfigError) as error:
            log.warning("could not release the node claim; the next agent will wait %g s: %s", GRACE_S, error)

    def _due(self, desired: NodeHealthStatus, server: NodeHealthStatus, now: float) -> float | None:
        """When to write ``desired`` over ``server`` (monotonic seconds); None: not at all."""
        if self._attempted is not None and server == self._attempted:
            self._record_baseline(server, server)  # the write succeeded, although its answer was lost
        baseline = self._baseline
        if baseline is None or self._sent is None:
            if change_signature(desired) != change_signature(server):
                return now
            self._record_baseline(server, server)
            self._last_write = now
            return self._routine_write_due(desired, server)
        differs = change_signature(desired) != change_signature(self._sent)
        if server == baseline:
            return now if differs else self._routine_write_due(desired, self._sent)
        # another client has written since
        if differs:
            return now  # there is a change to publish anyway
        if msgspec.structs.replace(server, agent=baseline.agent) == baseline:
            return now  # another agent's claim, which a fast answer rejects
        if self._heal_due is None:
            if now - self._last_heal > PEACE_S:
                self._heals = 0
            self._heal_due = now if self._heals == 0 else now + self._heal.delay_s(self._heals - 1, self._rng)
            log.warning("NodeHealth %s: another client has changed its status; overwriting it", self._node)
        return self._heal_due

    def _routine_write_due(self, desired: NodeHealthStatus, server: NodeHealthStatus) -> float | None:
        self._heal_due = None
        if desired.verdict == "PASS" or same_but_for_time(desired, server):
            return None
        return self._last_write + RIDE_ALONG_S

    async def _write_paced(self, now: float, health: NodeHealth, desired: NodeHealthStatus | None) -> float | None:
        """Write ``desired``, or only the claim if None, as soon as the rate limit allows it."""
        if wait_s := self._rate_limit.take(now):
            return wait_s
        version = health.metadata.resource_version
        if desired is None:
            own = self._source.desired()
            body = claim_patch(self.claim.pod_uid, own.agent.version if own else "", resource_version=version)
        else:
            if self._heal_due is not None:
                self._heals, self._last_heal, self._heal_due = self._heals + 1, now, None
            self._attempted = msgspec.structs.replace(desired, observed_at=rfc3339(self._clock.wall()))
            body = status_patch(self._attempted, resource_version=version)
        noticed, self._noticed_at = self._noticed_at, None
        try:
            written = await self._own.patch_status(body)
        except (ApiError, ConfigError) as error:
            self._noticed_at = noticed if noticed is not None else self._noticed_at
            pause_s = await self._handle_failure(error, health)
            self._pausing = pause_s is not None
            return pause_s
        self._failures, self._error = 0, ""
        if self._is_outdated(written, health):
            return 0.0
        if desired is None:
            self.claim.record_claim(self._clock.monotonic())
        else:
            self._last_write = self._clock.monotonic()
            if self._attempted is not None:
                self._record_baseline(written.status, self._attempted)
            self._metrics.record_publish(self._last_write - noticed if noticed is not None else None)
        self._observe_newer(written)
        return 0.0

    def _is_outdated(self, answer: NodeHealth, target: NodeHealth) -> bool:
        """Whether the watch has reported the deletion of ``target`` before the ``answer`` to a request for it."""
        now = self._observed
        return answer.metadata.uid == target.metadata.uid and (now is None or now.metadata.uid != target.metadata.uid)

    async def _handle_failure(self, error: ApiError | ConfigError, health: NodeHealth) -> float | None:
        """Decide how to continue after a failed write of ``health``."""
        self._metrics.record_publish_failure(type(error).__name__)
        failures, self._failures = self._failures, self._failures + 1
        if isinstance(error, Conflict | NotFound):
            # another client has written or deleted it, and the watch has not reported that yet: read the object and
            # decide again; a server that starts may also deny objects that exist, and no watch would correct that
            try:
                newest = await self._own.get()
            except NotFound:
                if self._observed is not None and self._observed.metadata.uid == health.metadata.uid:
                    self._observed = None  # the watch reports a new one
                    self._forget_baseline()
                return None
            except (ApiError, ConfigError) as again:
                error = again
            else:
                if not self._is_outdated(newest, health):
                    self._observe_newer(newest, newest=True)
                return 0.0 if failures == 0 else self._retry.delay_s(failures - 1, self._rng)
        if str(error) != self._error:
            log.warning("NodeHealth %s: cannot write its status, will retry: %s", self._node, error)
        self._error = str(error)
        delay_s = self._outage.pause_s(self._retry.delay_s(failures, self._rng), error, self._rng)
        return max(delay_s, error.retry_after_s) if isinstance(error, TooManyRequests) else delay_s

    def _record_baseline(self, server: NodeHealthStatus, sent: NodeHealthStatus) -> None:
        """Record that the object holds ``server`` after we wrote ``sent``."""
        if not same_but_for_time(server, sent) and change_signature(server) != change_signature(sent):
            log.error("NodeHealth %s: the API server dropped fields of the status: update its CRD", self._node)
        self._baseline, self._sent, self._attempted, self._heal_due = server, sent, None, None
        self.claim.record_write(server.observed_at)
        self._unpublished_since = None

    def _observe_newer(self, health: NodeHealth, *, newest: bool = False) -> None:
        known = self._observed
        if known is not None and known.metadata.uid == health.metadata.uid and not newest:
            old, new = known.metadata.resource_version, health.metadata.resource_version
            if old.isdigit() and new.isdigit() and int(new) <= int(old):
                return
        if known is not None and known.metadata.uid not in ("", health.metadata.uid):
            self._forget_baseline()  # deleted and created again
        self._observed = health
        self._source.apply_health(health)
        self._wake.set()

    def _forget_baseline(self) -> None:
        self._baseline = self._sent = self._attempted = self._heal_due = None

    def _note_unpublished(self, desired: NodeHealthStatus | None, now: float) -> None:
        if desired is None:
            return
        held = self._observed.status if self._observed is not None else None
        if held is not None and held == self._baseline:
            held = self._sent
        if held is not None and change_signature(desired) == change_signature(held):
            self._unpublished_since = self._noticed_at = None
        elif self._unpublished_since is None:
            self._unpublished_since = self._noticed_at if self._noticed_at is not None else now

    def _log_refusal(self, health: NodeHealth) -> None:
        if self.claim.holder != self._refused_by:
            self._refused_by = self.claim.holder
            self._metrics.set_claim_refused(bool(self._refused_by))
            if self._refused_by:
                log.error(
                    "node %s is claimed by another agent (pod UID %s, version %s): not publishing until it stops",
                    self._node,
                    self._refused_by,
                    health.status.agent.version or "unknown",
                )
            else:
                log.info("this agent now holds node %s", self._node)
