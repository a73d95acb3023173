"""The check ``services``: the system services that an accelerator node needs run and do not restart repeatedly."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class ServicesParameters(Parameters):
    units: str = Field(
        default="",
        max_length=2048,
        description="comma-separated systemd units that must run; empty: the known ones that are enabled on the node",
    )
    # as node-problem-detector's FrequentKubeletRestart and similar rules: 5 starts in 20 minutes
    max_restarts: int = Field(
        default=4, ge=0, description="restarts of one unit within the window above which it warns"
    )
    window_s: float = Field(default=1200.0, gt=0, description="seconds over which restarts are counted")


async def _probe(node: NodeView, parameters: ServicesParameters) -> Sequence[Finding]:
    from muster_checks.services.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: ServicesParameters) -> Sequence[Finding] | None:
    from muster_checks.services.probe import judge_recorded

    return judge_recorded(text, parameters)


SERVICES = Check(
    name="services",
    description="kubelet, container runtime and the vendors' services: running, and not restarting repeatedly",
    cost=Cost.LIGHT,
    parameters=ServicesParameters,
    timeout_s=15.0,
    devices=("host",),
    period_s=60.0,
    probe=_probe,
    recorded=_recorded,
    reads="systemctl show (systemd)",
    ran_on="hand-made output in systemctl's documented form; no test system ran systemd",
    examples=("check=services", "check=services&units=kubelet.service,containerd.service"),
)
