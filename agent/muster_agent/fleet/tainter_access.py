"""How an agent reaches the tainter."""

from pathlib import Path

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import FileToken, NoToken


class TainterAccess(msgspec.Struct, frozen=True):
    """token: a file with a token of this pod for the audience ``muster``, read anew as it rotates; ca: PEM bundle to
    trust with https, None: the system's."""

    url: str
    token: Path
    ca: Path | None = None

    def client(self, *, without_token: bool = False) -> KubeClient:
        """The tainter answers as the API server does: JSON, a bearer token, a Status for what it refuses.

        without_token: ask without one where none is mounted. Raises ConfigError, OSError.
        """
        anonymous = without_token and not self.token.exists()
        credentials = NoToken() if anonymous else FileToken(self.token)
        ca = self.ca.read_bytes() if self.ca is not None else None
        config = ClusterConfig("tainter_url", self.url, ca=ca, credentials=credentials)
        return KubeClient(config, user_agent="muster-agent", max_connections=1)
