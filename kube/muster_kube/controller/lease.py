"""Leadership by a ``coordination.k8s.io/v1`` Lease: at most one leads, whatever the clocks of the others say.

Others' times are never compared with ours: a holder is given up when its record has not changed for the lease's length
as *we* saw it. The leader stops ``renew_deadline_s`` after the start of its last good renewal, well before anybody else
may follow. CLOCK_BOOTTIME counts while a machine is suspended, so one that wakes up knows that it has lost.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, Conflict, NotFound
from muster_kube.api.objects import Api, Metadata
from muster_kube.api.times import rfc3339_micro
from muster_kube.controller.clock import Clock

log = logging.getLogger(__name__)

_LONGEST = 6  # a holder may ask for this many times our lease length; more would lock everybody out


class LeaseSpec(Api, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Api, frozen=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True)
class LeaseTiming:
    """duration_s: for which a lease holds; renew_deadline_s: after the start of the last good renewal its holder stops;
    retry_s: between two tries.

    Raises ValueError where these leave no room.
    """

    duration_s: float = 10.0
    renew_deadline_s: float = 6.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.retry_s * 1.5 < self.renew_deadline_s < self.duration_s:
            raise ValueError(
                f"lease: lease_s={self.duration_s}, renew_deadline_s={self.renew_deadline_s}, retry_s={self.retry_s}: "
                "expected 1.5 * retry < renew deadline < lease"
            )


@dataclass(frozen=True)
class _Observed:
    """A record and when, on our clock, we first saw it like that."""

    spec: LeaseSpec
    at: float


def boottime() -> float:
    """Seconds since boot, suspension counted; monotonic time where the system has no such clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_SINCE_BOOT = Clock(monotonic=boottime)


class LeaderElector:
    """One candidate for one Lease. ``identity`` must be unique (pod name and a random part).

    Raises ValueError when ``client`` is too patient: a call in flight at the deadline must end before the lease does.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        timing: LeaseTiming = LeaseTiming(),
        clock: Clock = _SINCE_BOOT,
    ) -> None:
        room_s = timing.duration_s - timing.renew_deadline_s
        if client.timeout_s > room_s:
            raise ValueError(
                f"lease: client timeout of {client.timeout_s} s, expected at most {room_s} s "
                "(lease minus renew deadline)"
            )
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._observed: _Observed | None = None
        self._renewed_at: float | None = None  # start of the last call that gave us the lease; None: not ours
        self._error = ""
        self.led_until: str | None = None
        """RFC 3339, by its own clock: when whoever led before us last renewed; None: nobody did."""
        self._led = False  # since ``led_until`` was noted: a lease that was ours before its answer came is no end

    def leading(self) -> bool:
        """May we write now? False as soon as the renew deadline has passed, even if nothing of ours runs meanwhile."""
        return (
            self._renewed_at is not None and self._clock.monotonic() < self._renewed_at + self._timing.renew_deadline_s
        )

    @property
    def holder(self) -> str:
        """Whose the lease is, as last seen; empty: nobody's."""
        return (self._observed and self._observed.spec.holder_identity) or ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Compete for ever; while leading, ``lead`` runs, and is cancelled and awaited on loss.

        Returns (or raises) when ``lead`` does by itself. The lease is released then, and when we are cancelled, after
        ``lead`` has ended.
        """
        while True:
            await self._acquire()
            try:
                if await self._lead_while_renewing(lead):
                    return
            finally:
                await self._release()

    async def _acquire(self) -> None:
        while not await self._try_once():
            await self._pause()
        log.info("%s leads (lease %s)", self._identity, self._name)

    async def _lead_while_renewing(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """True: ``lead`` ended by itself. False: the lease was lost."""
        work = asyncio.ensure_future(lead())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait((work, renewing), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work  # its error is the caller's
                return True
            renewing.result()  # an error in our own code is not a lost lease
            log.error("%s no longer leads (lease %s): %s", self._identity, self._name, self._error or "it is lost")
            return False
        finally:
            await _cancel(renewing)
            await _cancel(work)

    async def _renew(self) -> None:
        """Until the lease is lost."""
        while self.leading():
            await self._pause()
            if not self.leading():
                return
            with suppress(TimeoutError):  # the deadline cuts a call short: `lead` must not outlive it
                async with asyncio.timeout(self._left_s()):
                    if not await self._try_once() and self._renewed_at is None:
                        return  # somebody else has it

    async def _pause(self) -> None:
        # after Kubernetes' own electors: so that standbys do not ask in step
        pause_s = self._timing.retry_s * self._clock.rng.uniform(1.0, 1.2)
        if self._renewed_at is not None:
            # not past the deadline, as who leads must stop in time; 10 ms keep tiny rests from spinning
            pause_s = max(0.01, min(pause_s, self._left_s()))
        await self._clock.sleep(pause_s)

    def _left_s(self) -> float:
        """Seconds until the renew deadline; 0 when it has passed or the lease is not ours."""
        if self._renewed_at is None:
            return 0.0
        return max(0.0, self._renewed_at + self._timing.renew_deadline_s - self._clock.monotonic())

    async def _try_once(self) -> bool:
        """One attempt to take or keep the lease. Never raises for what the server says."""
        try:
            return await self._take_or_keep()
        except Conflict:
            self._error = "somebody else wrote the lease"
            return False  # look again: it may still be ours
        except (ApiError, ConfigError) as error:
            text = str(error)
            if text != self._error:  # once for each new reason, not for each try
                log.warning("lease %s: %s", self._name, text)
            self._error = text
            return False

    async def _take_or_keep(self) -> bool:
        started = self._clock.monotonic()
        try:
            lease = await self._client.get(self._path, type=Lease)
        except NotFound:
            made = self._record(transitions=0, acquired=None)
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": made,
            }
            answer = await self._client.create(self._collection, body, type=Lease)
            return self._note_renewal(answer, started)
        self._note_record(lease.spec)
        spec = lease.spec
        mine = spec.holder_identity == self._identity
        if not mine:
            self._renewed_at = None
            if spec.holder_identity and not self._has_expired():
                return False
        if not mine or (self._led and self._renewed_at is None):
            self.led_until, self._led = spec.renew_time, False
        transitions = spec.lease_transitions or 0
        record = self._record(
            transitions=transitions if mine else transitions + 1, acquired=spec.acquire_time if mine else None
        )
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "resourceVersion": lease.metadata.resource_version},
            "spec": record,
        }
        # a merge patch keeps the labels and owners that others have put on it; the resourceVersion makes it ours or 409
        return self._note_renewal(await self._client.patch(self._path, body, type=Lease), started)

    def _note_renewal(self, answer: Lease, started: float) -> bool:
        self._note_record(answer.spec)
        self._renewed_at = started
        self._led = True
        self._error = ""
        return True

    def _record(self, *, transitions: int, acquired: str | None) -> LeaseSpec:
        now = rfc3339_micro(self._clock.wall())
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=max(1, round(self._timing.duration_s)),
            acquire_time=acquired or now,
            renew_time=now,
            lease_transitions=transitions,
        )

    def _note_record(self, spec: LeaseSpec) -> None:
        if self._observed is None or self._observed.spec != spec:
            self._observed = _Observed(spec, self._clock.monotonic())

    def _has_expired(self) -> bool:
        if self._observed is None:
            return False
        asked_s = float(self._observed.spec.lease_duration_seconds or 0)
        lasts_s = max(self._timing.duration_s, min(asked_s, _LONGEST * self._timing.duration_s))
        return self._clock.monotonic() >= self._observed.at + lasts_s

    async def _release(self) -> None:
        """Give the lease back, so that a successor need not wait. Best effort: it runs out by itself."""
        if not self.leading():
            self._renewed_at = None
            return
        self._renewed_at = None
        with suppress(ApiError, ConfigError):
            lease = await self._client.get(self._path, type=Lease)
            if lease.spec.holder_identity != self._identity:
                return
            body = {
                "metadata": {"resourceVersion": lease.metadata.resource_version},
                "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
            }
            self._note_record((await self._client.patch(self._path, body, type=Lease)).spec)
            log.info("%s released lease %s", self._identity, self._name)


async def _cancel(task: "asyncio.Future[None]") -> None:
    """Cancel ``task`` and wait until it has ended, however long its clean-up takes; its error is nobody's any more."""
    if not task.done():
        task.cancel()
    while not task.done():
        await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is not None:
        log.debug("ended with %r", task.exception())


__all__ = ["LeaderElector", "Lease", "LeaseSpec", "LeaseTiming", "boottime"]
