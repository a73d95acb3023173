"""Runs the volume trial of the check pvc with the rights of the user who runs `muster check`."""

from pathlib import Path

from muster_cli.cluster.login import load_user_config
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ConfigError
from muster_kube.volume_trial import VolumeTrial, VolumeTrialRunner


class UserVolumes:
    """Tries volume claims in the namespace and with the rights of a kubeconfig, which is read on first use."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig

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
        try:
            config = load_user_config(self._kubeconfig)
        except ConfigError as error:
            return VolumeTrial(stage="refused", said=str(error))
        async with KubeClient(config, user_agent="muster-cli") as client:
            return await VolumeTrialRunner(client, config.namespace).try_claim(
                node,
                storage_class=storage_class,
                size_mib=size_mib,
                image=image,
                bind_timeout_s=bind_timeout_s,
                write_timeout_s=write_timeout_s,
            )
