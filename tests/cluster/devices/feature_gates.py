"""What turns DeviceTaintRules on in a control plane in which they are off by default."""

from collections.abc import Mapping, Sequence

_GATE = "--feature-gates=DRADeviceTaintRules=true"
DEVICE_TAINT_RULES: Mapping[int, Mapping[str, Sequence[str]]] = {  # arguments of each program, by minor version
    36: {
        "kube-apiserver": [_GATE, "--runtime-config=resource.k8s.io/v1beta2=true"],
        "kube-controller-manager": [_GATE],
        "kube-scheduler": [_GATE],
    }
}
