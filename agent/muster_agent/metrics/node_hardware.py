"""Models of the node's hardware, for the labels of Autopilot's gauge; read once, empty if unknown."""

from pathlib import Path

from muster_checks.base.declaration import NodeView

LABEL_LIMIT = 128  # characters


def read_hardware(node: NodeView) -> dict[str, str]:
    """``cpumodel`` from /proc/cpuinfo, ``gpumodel`` from the NVIDIA driver's /proc/driver/nvidia."""
    found = {"cpumodel": _value(node.path("/proc/cpuinfo"), "model name")}
    try:
        cards = sorted(node.path("/proc/driver/nvidia/gpus").glob("*/information"))
    except OSError:
        cards = []
    found["gpumodel"] = _value(cards[0], "Model") if cards else ""
    return found


def _value(path: Path, key: str) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()[:LABEL_LIMIT]
    except OSError:
        pass
    return ""
