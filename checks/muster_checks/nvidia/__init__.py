"""What NVIDIA's driver says of its GPUs: one reading that every NVIDIA check shares.

gpu.py has the values, nvml_child.py fills them from NVML in a process of its own, smi_xml.py from `nvidia-smi -q -x`,
probe.py chooses between the two and shares one reading among the checks that run at the same time, and judge.py has
what their judges share. models.yaml says what each GPU should do.
"""

from collections.abc import Sequence

from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding

READS = (
    "NVML (libnvidia-ml.so.1, part of the NVIDIA driver; Debian: libnvidia-ml1) in a child process, "
    "else `nvidia-smi -q -x` (Debian: nvidia-smi, Ubuntu: nvidia-utils-*)"
)
RAN_ON = (
    "nvidia-smi output that NVIDIA publishes in k8s-test-infra (8 H100 of driver 580, a T4 of driver 595, and from its "
    "mock driver a GB200 node with a lost GPU); NVML against a stand-in library; on no real GPU"
)
READ_LIMIT_S = 75.0
"""Time-out of a check: NVML's child and nvidia-smi have 30 s each."""
KNOWN_GPUS = "nvidia"  # under this name History keeps which GPUs there were


def resume_gpus(node: NodeView, findings: Sequence[Finding]) -> None:
    """After a restart: a GPU with an open finding was there before, so it is missed if it is there no longer."""
    addresses = [finding.component.removeprefix("gpu/") for finding in findings if finding.component.startswith("gpu/")]
    node.history.note(KNOWN_GPUS, {address: 1.0 for address in addresses if ":" in address})
