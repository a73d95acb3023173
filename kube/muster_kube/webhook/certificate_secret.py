"""The certificate of a server that the API server calls: made, shared by its replicas, renewed and reloaded.

Whichever replica comes first makes the key pair and keeps it in a Secret; the others take it. Writes are optimistic, so
nobody leads. Objects are looked at when a watch tells of a change or when a renewal is due: while nothing has to change
nothing is read or written.
"""

import asyncio
import base64
import binascii
import logging
import math
import ssl
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, Conflict, NotFound
from muster_kube.api.objects import Api, ManagedMetadata, Metadata
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.clock import SYSTEM_CLOCK, Clock
from muster_kube.controller.field_contest import BACKOFF, FieldContest, find_writers
from muster_kube.controller.reflector import Reflector
from muster_kube.webhook.key_pairs import (
    NAMES,
    KeyPairSet,
    UnusableKeyPair,
    next_renewal,
    read_key_pairs,
    renew_key_pairs,
)
from muster_kube.webhook.served_certificate import ServedCertificate

log = logging.getLogger(__name__)

SPREAD_S = 1.0  # replicas are told of a change together, and should not all write at once
CLOCK_LOOK_S = 3600.0  # renewals go by the wall clock, which may be set while a timer runs
OVERDUE_S = 30.0  # what is due and cannot be done yet: its authority is not trusted
TRIES = 5  # of replicas that start together; each round one of them gets on


class _Secret(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class _WatchedObject(Api, frozen=True):
    """Of what is watched only whether it has changed."""

    metadata: Metadata


class _ClientConfig(Api, frozen=True):
    ca_bundle: str = ""


class _Webhook(Api, frozen=True):
    name: str
    client_config: _ClientConfig = _ClientConfig()


class _Configuration(Api, frozen=True):
    """A ValidatingWebhookConfiguration or a MutatingWebhookConfiguration."""

    metadata: ManagedMetadata
    webhooks: tuple[_Webhook, ...] = ()

    def trusts(self, bundle: bytes) -> bool:
        return all(webhook.client_config.ca_bundle == _encode(bundle) for webhook in self.webhooks)


class CertificateSecret:
    """Kept in the Secret ``name`` of ``namespace``, for a server that is called by ``hosts`` (DNS names or addresses).

    trusting: API paths of the webhook configurations whose ``caBundle`` (of all their webhooks) is ours to write; one
        that does not exist is passed over until it does

    Rights: on the Secret create, get, list, watch and patch; on each configuration get, list, watch and patch. RBAC can
    bind all but create to the names, as lists and watches are of that one name only.
    Connections: as many watches as there are objects, and one for calls.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        hosts: Collection[str],
        *,
        trusting: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._hosts = frozenset(hosts)
        self._trusting = tuple(trusting)
        self._clock = clock
        self._served = ServedCertificate()
        self._due = 0.0  # seconds since the epoch, of the next look if nobody changes anything
        self._contests = {path: FieldContest(self._clock.rng) for path in self._trusting}
        self._changed = asyncio.Event()
        self.ready = self._served.ready

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return self._served.context

    @property
    def ca_bundle(self) -> bytes:
        return self._served.bundle

    @property
    def left_s(self) -> float:
        return self._served.ends - self._clock.wall()

    async def run(self) -> None:
        """For ever. What the API server refuses is logged once for each new reason, and tried again."""
        async with asyncio.TaskGroup() as group:
            for path in (self._path, *self._trusting):
                group.create_task(self._watch(path).run())
            await self._keep_fresh()

    def _watch(self, path: str) -> Reflector[_WatchedObject]:
        collection, _, name = path.rpartition("/")
        return Reflector(
            self._client,
            collection,
            _WatchedObject,
            on_change=lambda *_: self._changed.set(),
            params={"fieldSelector": f"metadata.name={name}"},
            clock=self._clock,
        )

    async def _keep_fresh(self) -> None:
        backoff, failures, told = Backoff(base_s=0.5, cap_s=30.0), 0, ""
        while True:
            self._changed.clear()
            try:
                await self.refresh()
            except (ApiError, ConfigError, UnusableKeyPair) as error:
                if str(error) != told:
                    log.warning("the certificate in Secret %s: %s", self._name, error)
                told = str(error)
                await self._wait_for_change(backoff.delay_s(failures, self._clock.rng))
                failures += 1
            else:
                failures, told = 0, ""
                while not self._changed.is_set() and (left_s := self._due - self._clock.wall()) > 0:
                    await self._wait_for_change(min(left_s, CLOCK_LOOK_S))
            await self._clock.sleep(self._clock.rng.uniform(0.0, SPREAD_S))

    async def _wait_for_change(self, seconds: float) -> None:
        """Until something has changed, at most so long."""
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def refresh(self) -> None:
        """Read what is there, renew what is due, have it trusted, serve it.

        Raises ApiError, ConfigError, UnusableKeyPair.
        """
        for attempt in range(1, TRIES + 1):
            try:
                kept, unsaid, rest_s = await self._agree_on_key_pairs()
            except Conflict:
                if attempt == TRIES:
                    raise
                continue
            self._served.load(kept.current.certificate, kept.current.key, kept.bundle)
            self._due = min(max(next_renewal(kept), self._clock.wall() + OVERDUE_S), self._clock.wall() + rest_s)
            if unsaid is not None:
                raise unsaid
            return

    async def _agree_on_key_pairs(self) -> tuple[KeyPairSet, ApiError | None, float]:
        """What all replicas serve from now on, why it could not be made known, and in how many seconds to look again
        because others write there, too. Raises Conflict: look again.

        The configurations are read before the Secret. Whoever writes both writes the Secret first, so a configuration
        that still has the version that was read never gets a bundle older than its own.
        """
        configurations = [each for path in self._trusting if (each := await self._configuration(path)) is not None]
        secret = await self._secret()
        before = None if secret is None else _read_key_pair_set(secret, self._path)
        trusted = before is not None and all(each.trusts(before.bundle) for _, each in configurations)
        kept = renew_key_pairs(before, self._hosts, self._clock.wall(), trusted=trusted)
        if kept is not before:
            await self._write(secret, kept)
        unsaid, rest_s = None, math.inf
        for path, configuration in configurations:
            try:
                rest_s = min(rest_s, await self._write_ca_bundle(path, configuration, kept.bundle))
            except Conflict:
                raise
            except ApiError as error:
                unsaid = error
        return kept, unsaid, rest_s

    async def _configuration(self, path: str) -> tuple[str, _Configuration] | None:
        try:
            return path, await self._client.get(path, type=_Configuration)
        except NotFound:
            return None

    async def _secret(self) -> _Secret | None:
        try:
            return await self._client.get(self._path, type=_Secret)
        except NotFound:
            return None

    async def _write(self, secret: _Secret | None, kept: KeyPairSet) -> None:
        data = {name: None if value is None else _encode(value) for name, value in kept.data().items()}
        if secret is None:
            body: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {"name": self._name},
                "data": {name: value for name, value in data.items() if value is not None},
            }
            await self._client.create(self._collection, body, type=_Secret)
        else:
            body = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
            await self._client.patch(self._path, body, type=_Secret)
        following = f", the next one until {rfc3339_whole(kept.next.ends)}" if kept.next else ""
        log.info(
            "Secret %s: written; its certificate is for %s, valid until %s%s",
            self._name,
            ", ".join(sorted(kept.current.hosts)),
            rfc3339_whole(kept.current.ends),
            following,
        )

    async def _write_ca_bundle(self, path: str, configuration: _Configuration, bundle: bytes) -> float:
        """In how many seconds to look again, as others have written there."""
        if configuration.trusts(bundle):
            return math.inf
        contest = self._contests[path]
        if (rest_s := contest.wait_s(_encode(bundle), self._clock.wall())) > 0:
            if contest.should_warn():
                log.warning(
                    "%s: %s writes another caBundle over ours again and again: ours is written ever later, in the end "
                    "about every %g s, and without it the webhook cannot be called. Let one of the two write it: take "
                    "cert-manager's annotation off, or name its certificate here (--cert-dir)",
                    path,
                    ", ".join(find_writers(configuration.metadata.managed_fields, "caBundle")) or "somebody",
                    BACKOFF.cap_s,
                )
            return rest_s
        webhooks = [
            {"name": webhook.name, "clientConfig": {"caBundle": _encode(bundle)}} for webhook in configuration.webhooks
        ]
        body = {"metadata": {"resourceVersion": configuration.metadata.resource_version}, "webhooks": webhooks}
        await self._client.patch(path, body, kind="strategic", type=_Configuration)
        log.info("%s: caBundle written", path)
        contest.note_write(self._clock.wall())
        return math.inf


def _read_key_pair_set(secret: _Secret, path: str) -> KeyPairSet | None:
    """Raises UnusableKeyPair: it is left as it is, for it may be somebody else's."""
    data: dict[str, bytes] = {}
    try:
        for name in NAMES:
            data[name] = base64.b64decode(secret.data.get(name) or "", validate=True)
        return read_key_pairs(data)
    except (binascii.Error, ValueError, UnusableKeyPair) as error:
        raise UnusableKeyPair(
            f"{path}: {error}; it is not touched: delete it, and a new one is made, or name another"
        ) from error


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def validating_webhook_path(name: str) -> str:
    """The API path of a ValidatingWebhookConfiguration, for ``trusting``."""
    return f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}"


def mutating_webhook_path(name: str) -> str:
    """The API path of a MutatingWebhookConfiguration, for ``trusting``."""
    return f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}"


__all__ = ["CertificateSecret", "mutating_webhook_path", "validating_webhook_path"]
