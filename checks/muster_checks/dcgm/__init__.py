"""The check ``dcgm``: NVIDIA's own diagnostic, `dcgmi diag`, at a chosen level.

parse.py parses its output, errors.py gives the meaning of its error codes, and judge.py turns results into findings.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class DcgmParameters(Parameters):
    # it decides where this node sends packets
    configured = frozenset({"host"})
    r: int = Field(
        default=1,
        ge=1,
        le=4,
        description="run level of dcgmi diag: 1 seconds, 2 two minutes, 3 a quarter of an hour, 4 hours",
    )
    # dcgmi --host: NVIDIA's documentation of dcgmi, and DCGM_UNIX_SOCKET_PREFIX in its source
    host: str = Field(
        default="",
        pattern=r"^(|unix:///[-\w./]{1,100}|[A-Za-z0-9\[][-A-Za-z0-9.:\]]{0,252})$",
        description="address of the host engine: HOST, HOST:PORT or unix://PATH; default: localhost",
    )


async def _probe(node: NodeView, parameters: DcgmParameters) -> Sequence[Finding]:
    from muster_checks.dcgm.probe import probe

    return await probe(node, parameters.r, parameters.host)


def _recorded(text: bytes, _: DcgmParameters) -> Sequence[Finding] | None:
    from muster_checks.dcgm.judge import judge
    from muster_checks.dcgm.parse import is_diagnosis, parse

    return judge(parse(text), {}) if is_diagnosis(text) else None


DCGM = Check(
    name="dcgm",
    description="NVIDIA's own diagnostic of GPUs, driver and installation (dcgmi diag)",
    cost=Cost.HEAVY,
    parameters=DcgmParameters,
    timeout_s=7500.0,  # for level 4; each level has its own, shorter timeout
    period_s=3600.0,
    devices=("gpu", "host"),
    probe=_probe,
    recorded=_recorded,
    reads="dcgmi diag -r N -j, dcgmi discovery -l, of the container or else of the node "
    "(datacenter-gpu-manager-4-core; DCGM 3: datacenter-gpu-manager)",
    ran_on="recorded output of dcgmi from public collections, and documents in the layout of DCGM's source; not on "
    "real hardware",
    examples=("check=dcgm", "check=dcgm&r=3"),
)
