"""The check ``pvc``: a volume claim binds, and a pod on this node can write to it.

An agent may not make claims or pods; whoever runs the check lends the right (NodeView.volumes): the tainter for the
fleet, a person's kubeconfig for `muster check pvc`.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class PvcParameters(Parameters):
    # which image runs in our namespace, and what it takes from whose storage, is no stranger's choice
    sends = frozenset({"image", "size_mib", "storage_class"})
    storage_class: str = Field(default="", max_length=253, description="of the claim; empty: the cluster's default")
    size_mib: int = Field(default=16, ge=1, le=1 << 20, description="size of the claim, MiB")
    image: str = Field(default="busybox", min_length=1, max_length=512, description="of the pod that writes; has sh")
    bind_timeout_s: float = Field(default=90.0, gt=0, le=600, description="seconds in which the claim must be bound")
    write_timeout_s: float = Field(
        default=120.0, gt=0, le=600, description="seconds in which the pod must have written"
    )


async def _probe(node: NodeView, parameters: PvcParameters) -> Sequence[Finding]:
    from muster_checks.pvc.probe import probe

    return await probe(node, parameters)


PVC = Check(
    name="pvc",
    description="a volume claim is bound, and a pod on this node writes to it, within a time",
    cost=Cost.HEAVY,
    parameters=PvcParameters,
    timeout_s=1260.0,
    devices=("storage",),
    probe=_probe,
    reads="the Kubernetes API: a PersistentVolumeClaim and a pod of its own, both deleted again",
    ran_on="a real API server, volume binder and scheduler; the pod's life was played by a simulated kubelet",
    examples=("check=pvc", "check=pvc&storage_class=fast"),
)
