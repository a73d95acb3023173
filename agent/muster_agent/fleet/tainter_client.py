"""Lends the tainter's rights to a check that needs them: an agent may make neither claims nor pods."""

from muster_agent.fleet.tainter_access import TainterAccess
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.volume_trial import VolumeTrial

PATH = "/api/trials/pvc"
SPARE_S = 45.0  # beyond the trial's own limits: to find out who asks, to sweep before, to delete behind


class VolumeTrialClient:
    """Volume claims that the tainter tries."""

    def __init__(self, tainter: TainterAccess) -> None:
        self._tainter = tainter

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
            async with self._tainter.client() as tainter:
                return await tainter.create(PATH, body, type=VolumeTrial, timeout_s=timeout_s)
        except (ApiError, ConfigError, OSError) as error:
            return VolumeTrial(
                stage="refused", storage_class=storage_class, said=f"tainter at {self._tainter.url}: {error}"
            )
