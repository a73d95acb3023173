"""Lends a person's rights in the cluster to a check that needs them."""

from pathlib import Path

from muster_cli.cluster.login import load_user_config
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ConfigError
from muster_kube.volume_trial import VolumeTrial, VolumeTrialRunner


class UserVolumes:
    """Volume claims with the rights and in the namespace of a kubeconfig, which is read when it is needed."""

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
