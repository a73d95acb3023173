"""The certificate of a webhook server: creates it, shares it between replicas, renews and reloads it.

The first replica creates the key pair and stores it in a Secret, from which the others read it. Writes use optimistic
locking, so no leader is needed. Objects are read when a watch reports a change or a renewal is due; otherwise nothing
is read or written.
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

SPREAD_S = 1.0  # all replicas see a change at the same time, and should not all write at once
CLOCK_LOOK_S = 3600.0  # renewals use the wall clock, which may be changed while a timer runs
OVERDUE_S = 30.0  # delay of a renewal that is due while its authority is not trusted yet
TRIES = 5  # attempts of replicas that start together; in each round one succeeds


class _Secret(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class _WatchedObject(Api, frozen=True):
    """A watched object, of which only the version is kept."""

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
    """Stored in the Secret ``name`` in ``namespace``, for a server with the names ``hosts`` (DNS names or addresses).

    trusting: API paths of the webhook configurations in which to write the ``caBundle`` of all webhooks; a
        configuration that does not exist is skipped until it does

    Permissions: create, get, list, watch and patch on the Secret; get, list, watch and patch on each configuration.
    RBAC can restrict all except create to the names, because lists and watches select one name.
    Connections: one watch for each object, and one for calls.
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
        self._due = 0.0  # seconds since the epoch: when to check again without a change
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
        """Run until cancelled. Failed calls are retried; each new reason is logged once."""
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
        backoff, failures, warned = Backoff(base_s=0.5, cap_s=30.0), 0, ""
        while True:
            self._changed.clear()
            try:
                await self.refresh()
            except (ApiError, ConfigError, UnusableKeyPair) as error:
                if str(error) != warned:
                    log.warning("cannot update the certificate in Secret %s: %s", self._name, error)
                warned = str(error)
                await self._wait_for_change(backoff.delay_s(failures, self._clock.rng))
                failures += 1
            else:
                failures, warned = 0, ""
                while not self._changed.is_set() and (left_s := self._due - self._clock.wall()) > 0:
                    await self._wait_for_change(min(left_s, CLOCK_LOOK_S))
            await self._clock.sleep(self._clock.rng.uniform(0.0, SPREAD_S))

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for a change, at most so long."""
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the current state, renew if due, write the caBundle, and serve the certificate.

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
        """Returns the key pairs that all replicas serve from now on, the error of writing the caBundle, and in how many
        seconds to check again because another client overwrites it. Raises Conflict: try again.

        Reads the configurations before the Secret. Every replica writes the Secret first, so a configuration that is
        unchanged since it was read never gets an older bundle than it has.
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
            "wrote Secret %s with a certificate for %s, valid until %s%s",
            self._name,
            ", ".join(sorted(kept.current.hosts)),
            rfc3339_whole(kept.current.ends),
            following,
        )

    async def _write_ca_bundle(self, path: str, configuration: _Configuration, bundle: bytes) -> float:
        """In how many seconds to check again, because another client has overwritten it."""
        if configuration.trusts(bundle):
            return math.inf
        contest = self._contests[path]
        if (rest_s := contest.wait_s(_encode(bundle), self._clock.wall())) > 0:
            if contest.should_warn():
                log.warning(
                    "%s: %s keeps overwriting our caBundle, without which the API server cannot call the webhook: we "
                    "restore it at growing intervals, up to about every %g s: let only one of the two write it: remove "
                    "cert-manager's annotation, or use its certificate (--cert-dir)",
                    path,
                    ", ".join(find_writers(configuration.metadata.managed_fields, "caBundle")) or "another client",
                    BACKOFF.cap_s,
                )
            return rest_s
        webhooks = [
            {"name": webhook.name, "clientConfig": {"caBundle": _encode(bundle)}} for webhook in configuration.webhooks
        ]
        body = {"metadata": {"resourceVersion": configuration.metadata.resource_version}, "webhooks": webhooks}
        await self._client.patch(path, body, kind="strategic", type=_Configuration)
        log.info("%s: wrote caBundle", path)
        contest.note_write(self._clock.wall())
        return math.inf


def _read_key_pair_set(secret: _Secret, path: str) -> KeyPairSet | None:
    """Raises UnusableKeyPair without changing the Secret, which may belong to another program."""
    data: dict[str, bytes] = {}
    try:
        for name in NAMES:
            data[name] = base64.b64decode(secret.data.get(name) or "", validate=True)
        return read_key_pairs(data)
    except (binascii.Error, ValueError, UnusableKeyPair) as error:
        raise UnusableKeyPair(
            f"{path}: {error}: delete the Secret to have a new one created, or configure another name"
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
