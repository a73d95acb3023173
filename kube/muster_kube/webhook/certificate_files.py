"""A server certificate in files that another program renews; the files are read again periodically."""

import logging
import ssl
from pathlib import Path

from muster_kube.api.errors import ConfigError
from muster_kube.controller.clock import SYSTEM_CLOCK, Clock
from muster_kube.webhook.key_files import read_key_files
from muster_kube.webhook.key_pairs import UnusableKeyPair
from muster_kube.webhook.served_certificate import ServedCertificate

log = logging.getLogger(__name__)

FILES_LOOK_S = 60.0  # the kubelet takes as long to update a mounted Secret


class CertificateFiles:
    """Files from another program, such as cert-manager's mounted Secret: tls.crt, tls.key and, optionally, ca.crt.

    That program also sets the caBundle. Raises ConfigError if the files are unusable at the start; later, the last
    valid ones stay in use.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._served = ServedCertificate()
        self.ready = self._served.ready
        self.refresh()

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return self._served.context

    @property
    def ca_bundle(self) -> bytes:
        return self._served.bundle

    @property
    def left_s(self) -> float:
        return self._served.ends - self._clock.wall()

    def refresh(self) -> None:
        """Raises ConfigError."""
        files = read_key_files(self._folder)
        try:
            self._served.load(files.certificate, files.key, files.authorities)
        except UnusableKeyPair as error:
            raise ConfigError(f"{self._folder}: {error}") from error

    async def run(self) -> None:
        warned = ""
        while True:
            await self._clock.sleep(FILES_LOOK_S)
            try:
                self.refresh()
            except ConfigError as error:
                # the kubelet replaces all files atomically, but other programs write them one by one
                if str(error) != warned:
                    log.warning("cannot load the new certificate: %s: still serving the previous one", error)
                warned = str(error)
            else:
                warned = ""
