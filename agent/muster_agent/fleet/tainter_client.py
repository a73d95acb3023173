"""Lends the tainter's rights to a check that needs them: an agent may make neither claims nor pods."""

from pathlib import Path

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import FileToken
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.volume_trial import VolumeTrial

PATH = "/api/trials/pvc"
SPARE_S = 45.0  # beyond the trial's own limits: to find out who asks, to sweep before, to delete behind


class VolumeTrialClient:
    """Volume claims that the tainter at ``url`` tries. The token is read anew each time; ``ca``: PEM, for https."""

    def __init__(self, url: str, token: Path, ca: Path | None) -> None:
        self._url = url
        self._token = token
        self._ca = ca

    async def try_claim(
        self,
        node: str,
        *,
        storage_class: str,
        size_mib: int,
        image: str,
        bind_timeout_s: float,
        write_timeout_s: float,
    ) -> VolumeTrial:
        """Whatever keeps the tainter from answering is a trial that was refused."""
        body = {
            "node": node,
            "storageClass": storage_class,
            "sizeMib": size_mib,
            "image": image,
            "bindTimeoutSeconds": bind_timeout_s,
            "writeTimeoutSeconds": write_timeout_s,
        }
        timeout_s = bind_timeout_s + write_timeout_s + SPARE_S
        try:
            ca = self._ca.read_bytes() if self._ca is not None else None
            # it speaks as the API server does: JSON, a bearer token, a Status for what it refuses
            config = ClusterConfig("tainter_url", self._url, ca=ca, credentials=FileToken(self._token))
            async with KubeClient(config, user_agent="muster-agent", max_connections=1) as tainter:
                return await tainter.create(PATH, body, type=VolumeTrial, timeout_s=timeout_s)
        except (ApiError, ConfigError, OSError) as error:
            return VolumeTrial(stage="refused", storage_class=storage_class, said=f"tainter at {self._url}: {error}")
