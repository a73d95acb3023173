"""How to find a node's IPUs. Shared by the IPU checks and imported by their declarations, so it stays small."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from pydantic import Field

from muster_checks.base.declaration import Parameters

VIPU_PORT = 8090  # the default port of a V-IPU controller, which poprun assumes too


class GraphcoreParameters(Parameters):
    sends = frozenset({"vipu_api_host", "vipu_api_port"})
    vipu_api_host: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9.:_-]{0,252})?$",
        description="V-IPU controller (default: IPUOF_VIPU_API_HOST of the environment)",
    )
    vipu_api_port: int | None = Field(
        default=None, ge=1, le=65535, description="its port (default: IPUOF_VIPU_API_PORT, then 8090)"
    )
    partition: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,252})?$",
        description="V-IPU partition (default: IPUOF_VIPU_API_PARTITION_ID)",
    )
    ipuof_config: Path | None = Field(
        default=None, description="configuration file of a partition (default: IPUOF_CONFIG_PATH)"
    )
    all_partitions: bool = Field(
        default=False,
        description="check the IPUs of every partition that this host knows, not only of the active one",
    )
    expected: Path | None = Field(
        default=None, description="YAML file of expected values that add to or change the shipped ones"
    )


class IpuFabric(msgspec.Struct, frozen=True):
    """How the IPUs are reached over the network.

    variables: the parameters as environment variables for the tools
    """

    host: str
    port: int
    partition: str
    config: str
    variables: dict[str, str]

    @property
    def configured(self) -> bool:
        return bool(self.host or self.config)


def read_fabric(parameters: GraphcoreParameters, environment: Mapping[str, str]) -> IpuFabric:
    """The parameters, with the environment as the default."""
    variables = {
        "IPUOF_VIPU_API_HOST": parameters.vipu_api_host,
        "IPUOF_VIPU_API_PORT": str(parameters.vipu_api_port or ""),
        "IPUOF_VIPU_API_PARTITION_ID": parameters.partition,
        "IPUOF_CONFIG_PATH": str(parameters.ipuof_config or ""),
    }
    variables = {name: value for name, value in variables.items() if value}
    both = {**environment, **variables}
    port = both.get("IPUOF_VIPU_API_PORT", "")
    return IpuFabric(
        host=both.get("IPUOF_VIPU_API_HOST", ""),
        port=int(port) if port.isascii() and port.isdigit() and len(port) < 6 else VIPU_PORT,
        partition=both.get("IPUOF_VIPU_API_PARTITION_ID", ""),
        config=both.get("IPUOF_CONFIG_PATH", ""),
        variables=variables,
    )
