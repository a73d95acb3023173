"""The certificate that a TLS server shows: loaded from memory, and exchanged while it serves."""

import asyncio
import logging
import math
import os
import ssl
from typing import Protocol

from muster_kube.webhook.key_pairs import UnusableKeyPair, expiry_of

log = logging.getLogger(__name__)


class CertificateSource(Protocol):
    """What a TLS server needs of either kind."""

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """One object for the whole life of the process; new handshakes get what was loaded last."""

    @property
    def ca_bundle(self) -> bytes:
        """PEM of the authorities to trust; empty while unknown."""

    @property
    def left_s(self) -> float:
        """Seconds until the one that is served ends, below 0 after that; NaN while there is none."""

    @property
    def ready(self) -> asyncio.Event:
        """Set once there is a certificate to serve."""

    async def run(self) -> None:
        """Look after it for ever."""


class ServedCertificate:
    """The context of a running server, and what was loaded into it last."""

    def __init__(self) -> None:
        self.context = server_context()
        self.bundle = b""
        self.ends = math.nan  # seconds since the epoch
        self.ready = asyncio.Event()
        self._loaded: tuple[bytes, bytes] | None = None

    def load(self, certificate: bytes, key: bytes, bundle: bytes) -> None:
        """Does nothing where it is loaded already. Raises UnusableKeyPair, with the old one in place."""
        self.bundle = bundle
        if (certificate, key) == self._loaded:
            return
        try:
            load_key_pair(server_context(), certificate, key)  # tried apart: half a pair would end every handshake
            load_key_pair(self.context, certificate, key)
            self.ends = expiry_of(certificate)
        except (ssl.SSLError, ValueError) as error:
            raise UnusableKeyPair(f"no certificate with its key: {error}") from error
        self._loaded = certificate, key
        self.ready.set()
        log.info("a certificate was loaded")


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def load_key_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """PEM. ssl reads files only: this one is in memory, so that no key lies on any disk. Raises ssl.SSLError."""
    number = os.memfd_create("certificate")
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
