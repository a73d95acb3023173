"""Has the tainter create volume claims for the check pvc, because agents may create neither claims nor pods."""

from muster_agent.fleet.tainter_access import TainterAccess
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.volume_trial import VolumeTrial

PATH = "/api/trials/pvc"
SPARE_S = 45.0  # added to the timeouts of the trial: authentication, and cleanup before and after it


class VolumeTrialClient:
    """Volume trials that the tainter runs."""

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
        """Run a trial. If the tainter cannot be queried, the result is a refused trial."""
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
                stage="refused",
                storage_class=storage_class,
                said=f"cannot query the tainter at {self._tainter.url}: {error}",
            )
