"""How an agent connects to the tainter."""

from pathlib import Path

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import FileToken, NoToken


class TainterAccess(msgspec.Struct, frozen=True):
    """Address and credentials of the tainter.

    token: file with a token of this pod for the audience ``muster``, read again when it is rotated
    ca:    PEM bundle of trusted certificate authorities for https; None: those of the system
    """

    url: str
    token: Path
    ca: Path | None = None

    def client(self, *, without_token: bool = False) -> KubeClient:
        """A client for the tainter, whose HTTP interface follows the API server's: JSON, bearer tokens, and errors as
        Status objects.

        without_token: send no token if none is mounted. Raises ConfigError, OSError.
        """
        anonymous = without_token and not self.token.exists()
        credentials = NoToken() if anonymous else FileToken(self.token)
        ca = self.ca.read_bytes() if self.ca is not None else None
        config = ClusterConfig("tainter_url", self.url, ca=ca, credentials=credentials)
        return KubeClient(config, user_agent="muster-agent", max_connections=1)
