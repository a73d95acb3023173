"""The check ``gpufabric``: registration of GPUs with their NVSwitch fabric, and the driver's recovery action."""

from pydantic import Field

from muster_checks.base.declaration import NodeView, Parameters
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu_check import GpuJudge, gpu_check

NAME = "gpufabric"


class GpufabricParameters(Parameters):
    max_registering_s: float = Field(
        default=600.0,
        ge=60.0,
        le=86_400.0,
        description="seconds after which a GPU that is not registered with its fabric fails; before that it warns",
    )


async def _probe(node: NodeView, parameters: GpufabricParameters) -> list[Finding]:
    from muster_checks.gpufabric.probe import probe

    return await probe(node, parameters)


def _judge() -> GpuJudge:
    from muster_checks.gpufabric.judge import judge

    return GpuJudge(judge)


GPUFABRIC = gpu_check(
    NAME,
    GpufabricParameters,
    _judge,
    probe=_probe,
    description="NVSwitch fabric (HGX H100 and later, NVL72): registration and health; the driver's recovery action",
    examples=("check=gpufabric",),
)
