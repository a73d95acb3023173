"""The certificate of a TLS server: loaded from memory, and replaced while the server runs."""

import asyncio
import logging
import math
import ssl
from typing import Protocol

from muster_kube.http.tls import load_key_pair, server_context
from muster_kube.webhook.key_pairs import UnusableKeyPair, expiry_of

log = logging.getLogger(__name__)


class CertificateSource(Protocol):
    """The interface of both kinds of certificate for a TLS server."""

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The same object for the life of the process; new handshakes use the certificate that was loaded last."""

    @property
    def ca_bundle(self) -> bytes:
        """PEM of the authorities to trust; empty while unknown."""

    @property
    def left_s(self) -> float:
        """Seconds until the served certificate expires; negative after that; NaN without a certificate."""

    @property
    def ready(self) -> asyncio.Event:
        """Set once a certificate is loaded."""

    async def run(self) -> None:
        """Renew or reload the certificate until cancelled."""


class ServedCertificate:
    """The TLS context of a running server, and the certificate that was loaded last."""

    def __init__(self) -> None:
        self.context = server_context()
        self.bundle = b""
        self.ends = math.nan  # seconds since the epoch
        self.ready = asyncio.Event()
        self._loaded: tuple[bytes, bytes] | None = None

    def load(self, certificate: bytes, key: bytes, bundle: bytes) -> None:
        """Load the pair, unless it is loaded already. Raises UnusableKeyPair and keeps the old one."""
        self.bundle = bundle
        if (certificate, key) == self._loaded:
            return
        try:
            load_key_pair(server_context(), certificate, key)  # tested apart: half a pair breaks handshakes
            load_key_pair(self.context, certificate, key)
            self.ends = expiry_of(certificate)
        except (ssl.SSLError, ValueError) as error:
            raise UnusableKeyPair(f"certificate and key do not load: {error}") from error
        self._loaded = certificate, key
        self.ready.set()
        log.info("loaded a new certificate")
