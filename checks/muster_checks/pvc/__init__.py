"""The check ``pvc``: a volume claim binds, and a pod on this node can write to the volume.

An agent may not create claims or pods. The runner of the check supplies that right (NodeView.volumes): the tainter for
the fleet, a person's kubeconfig for `muster check pvc`.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class PvcParameters(Parameters):
    # an unauthenticated caller may not choose the storage that our namespace uses, and nobody the image that runs there
    sends = frozenset({"size_mib", "storage_class"})
    configured = frozenset({"image"})
    storage_class: str = Field(
        default="", max_length=253, description="class of the claim; empty: the cluster's default"
    )
    size_mib: int = Field(default=16, ge=1, le=1 << 20, description="size of the claim, MiB")
    image: str = Field(default="busybox", min_length=1, max_length=512, description="image of the pod; must contain sh")
    bind_timeout_s: float = Field(default=90.0, gt=0, le=600, description="seconds for the claim to be bound")
    write_timeout_s: float = Field(default=120.0, gt=0, le=600, description="seconds for the pod to write")


async def _probe(node: NodeView, parameters: PvcParameters) -> Sequence[Finding]:
    from muster_checks.pvc.probe import probe

    return await probe(node, parameters)


PVC = Check(
    name="pvc",
    description="a volume claim is bound, and a pod on this node writes to it, within a time limit",
    cost=Cost.HEAVY,
    parameters=PvcParameters,
    timeout_s=1260.0,
    devices=("storage",),
    probe=_probe,
    reads="the Kubernetes API: creates a PersistentVolumeClaim and a pod, and deletes both",
    ran_on="a real API server, volume binder and scheduler, with a simulated kubelet for the pod",
    examples=("check=pvc", "check=pvc&storage_class=fast"),
)
