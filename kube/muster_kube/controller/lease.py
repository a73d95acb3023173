"""Leader election with a ``coordination.k8s.io/v1`` Lease. At most one candidate leads, even if clocks differ.

Times of other machines are never compared with ours: a lease has expired when *we* have seen no change of its record
for its duration. The leader stops ``renew_deadline_s`` after the start of its last successful renewal, well before
another candidate may take over. CLOCK_BOOTTIME counts while a machine is suspended, so a resumed leader notices that
it has lost the lease.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, Conflict, NotFound
from muster_kube.api.objects import Api, Metadata
from muster_kube.api.times import rfc3339_micro
from muster_kube.controller.backoff import Outage
from muster_kube.controller.clock import Clock

log = logging.getLogger(__name__)

_LONGEST = 6  # a holder may request this many times our lease duration; more would lock out other candidates


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
    """duration_s: how long a lease is valid. renew_deadline_s: the leader stops this long after the start of its last
    successful renewal. retry_s: between two attempts.

    Raises ValueError for inconsistent times.
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
    """A record, and when we first saw it in this state, on our clock."""

    spec: LeaseSpec
    at: float


def boottime() -> float:
    """Seconds since boot, including suspension; monotonic time if the system lacks that clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_SINCE_BOOT = Clock(monotonic=boottime)


class LeaderElector:
    """One candidate for one Lease. ``identity`` must be unique (pod name and a random part).

    Raises ValueError if the timeout of ``client`` is too long: a call must end before the lease expires.
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
        self._renewed_at: float | None = None  # start of the last successful renewal; None: we do not hold the lease
        self._took_s = 0.0  # that renewal, until its answer
        self._error = ""
        self._outage = Outage(clock.monotonic)
        self._failure: Exception | None = None  # of the last attempt
        self.led_until: str | None = None
        """RFC 3339, on its own clock: the last renewal of the leader before us; None: there was none."""
        self._led = False  # since ``led_until`` was set: our own lease does not count as a previous leader's
        self.follows_another = False
        """Whether another process may have led since :meth:`took_over`."""

    def took_over(self) -> None:
        """The leader that we follow, if any, can do no harm any more."""
        self.follows_another = False

    def leading(self) -> bool:
        """Whether we may write now. False once the renew deadline has passed, even if our tasks did not run since."""
        return (
            self._renewed_at is not None and self._clock.monotonic() < self._renewed_at + self._timing.renew_deadline_s
        )

    @property
    def holder(self) -> str:
        """The last observed holder; empty: none."""
        return (self._observed and self._observed.spec.holder_identity) or ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Compete for the lease until cancelled. Runs ``lead`` while leading; on loss, cancels it and waits for it.

        Returns or raises when ``lead`` does. Then, and when cancelled, releases the lease after ``lead`` has ended.
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
        log.info("%s became the leader (lease %s)", self._identity, self._name)

    async def _lead_while_renewing(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """True: ``lead`` has ended. False: the lease was lost."""
        work = asyncio.ensure_future(lead())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait((work, renewing), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work  # raises its error
                return True
            renewing.result()  # an error in our code does not mean that the lease is lost
            log.error("%s lost the leadership (lease %s): %s", self._identity, self._name, self._error or "lease lost")
            return False
        finally:
            await _cancel(renewing)
            await _cancel(work)

    async def _renew(self) -> None:
        """Renew until the lease is lost."""
        while self.leading():
            await self._pause()
            if not self.leading():
                return
            with suppress(TimeoutError):  # the deadline cancels a call: `lead` must end by then
                async with asyncio.timeout(self._left_s()):
                    if not await self._try_once() and self._renewed_at is None:
                        return  # another candidate holds it

    async def _pause(self) -> None:
        # like Kubernetes' own leader election, so that candidates do not retry at the same moments
        pause_s = self._timing.retry_s * self._clock.rng.uniform(1.0, 1.2)
        pause_s = self._outage.pause_s(pause_s, self._failure, self._clock.rng)
        if self._renewed_at is not None:
            # not past the deadline, so that the leader stops in time; after a success, early enough for a renewal that
            # is as slow as the last one, with room to spare; at least 10 ms to avoid a busy loop
            left_s = self._left_s() if self._failure else (self._left_s() - self._took_s) / 2
            pause_s = max(0.01, min(pause_s, left_s))
        elif (expires_s := self._expires_in_s()) > 0.0:
            pause_s = min(pause_s, expires_s + 0.01)
        await self._clock.sleep(pause_s)

    def _left_s(self) -> float:
        """Seconds until the renew deadline; 0 if it has passed or we do not hold the lease."""
        if self._renewed_at is None:
            return 0.0
        return max(0.0, self._renewed_at + self._timing.renew_deadline_s - self._clock.monotonic())

    async def _try_once(self) -> bool:
        """One attempt to acquire or renew the lease. Does not raise ApiError."""
        self._failure = None
        try:
            return await self._take_or_keep()
        except Conflict:
            self._error = "another candidate changed the lease"
            return False  # read it again: we may still hold it
        except (ApiError, ConfigError) as error:
            self._failure = error
            text = str(error)
            if text != self._error:  # log each new reason once, not every attempt
                log.warning("lease %s: %s", self._name, text)
            self._error = text
            return False

    async def _take_or_keep(self) -> bool:
        started = self._clock.monotonic()
        try:
            lease = await self._client.get(self._path, type=Lease)
        except NotFound:
            self.follows_another = True
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
            self._renewed_at, self.follows_another = None, True
            if spec.holder_identity and self._expires_in_s() > 0.0:
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
        # a merge patch keeps labels and owners of other clients; with the resourceVersion it succeeds or fails with 409
        return self._note_renewal(await self._client.patch(self._path, body, type=Lease), started)

    def _note_renewal(self, answer: Lease, started: float) -> bool:
        self._note_record(answer.spec)
        self._renewed_at = started
        self._took_s = self._clock.monotonic() - started
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

    def _expires_in_s(self) -> float:
        """Seconds until another candidate's lease has expired, as far as we have seen; 0 or less if it has."""
        if self._observed is None:
            return math.inf
        requested_s = float(self._observed.spec.lease_duration_seconds or 0)
        lasts_s = max(self._timing.duration_s, min(requested_s, _LONGEST * self._timing.duration_s))
        return self._observed.at + lasts_s - self._clock.monotonic()

    async def _release(self) -> None:
        """Release the lease, so that a successor need not wait. Best effort: the lease expires anyway."""
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
    """Cancel ``task`` and wait until it has ended, however long its cleanup takes; drop its error."""
    if not task.done():
        task.cancel()
    while not task.done():
        await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is not None:
        log.debug("ended with %r", task.exception())


__all__ = ["LeaderElector", "Lease", "LeaseSpec", "LeaseTiming", "boottime"]
