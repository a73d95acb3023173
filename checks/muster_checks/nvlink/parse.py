"""Parses `nvidia-smi nvlink --status` and `dcgmi nvlink --link-status`.

nvidia-smi's format, as public tools parse it (Azure's node health checks among them)::

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)
             Link 0: 26.562 GB/s
             Link 1: <inactive>
    GPU 1: …
    NVML: Unable to retrieve NVLink information as all links are inActive

dcgmi's format (github.com/NVIDIA/DCGM, dcgmi/Nvlink.cpp), which names neither the model nor the address::

    |  NvLink Link Status  |
    GPUs:
        gpuId 0:
            U U D D X _
    NvSwitches:
        physicalId 11:
            U U …
    Key: Up=U, Down=D, Disabled=X, Not Supported=_
"""

import re
from itertools import pairwise

import msgspec

from muster_checks.base.bounded_read import number
from muster_checks.nvidia.gpu import Gpu, GpuReading, NvLink

LINES_LIMIT = 4096  # 16 GPUs with 36 links are 600
_GPU = re.compile(r"GPU ([0-9]{1,3}): (.{1,96}?) \(UUID: (\S{1,64})\)\s*")
_DCGMI = re.compile(r"\|  NvLink Link Status  \|\s*")
_DCGMI_GPU = re.compile(r"    gpuId ([0-9]{1,3}):\s*")
_DCGMI_LINKS = re.compile(r"        ([UDX_](?: [UDX_]){0,63})\s*")
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.{1,64}?)\s*")


def parse(text: bytes) -> GpuReading | None:
    """The GPUs with their links; None if ``text`` has another format.

    A GPU without link lines has no NVLink. A GPU whose links are all inactive gets one inactive link.
    """
    gpus: list[Gpu] = []
    for line in text[: 1 << 20].decode("utf-8", "replace").splitlines()[:LINES_LIMIT]:
        if heading := _GPU.fullmatch(line):
            gpus.append(Gpu(index=int(heading[1]), name=heading[2], uuid=heading[3], nvlinks=()))
        elif gpus and (link := _LINK.fullmatch(line)):
            gpus[-1] = _with_link(gpus[-1], int(link[1]), link[2])
        elif gpus and "all links are inactive" in line.casefold():
            gpus[-1] = _with_link(gpus[-1], 0, "<inactive>")
    return GpuReading(source="nvidia-smi", gpus=tuple(gpus)) if gpus else None


def parse_dcgmi(text: bytes) -> GpuReading | None:
    """The GPUs with the links that are not disabled; None if ``text`` has another format. Switches are left out."""
    lines = text[: 1 << 20].decode("utf-8", "replace").splitlines()[:LINES_LIMIT]
    if not any(map(_DCGMI.fullmatch, lines)):
        return None
    gpus = []
    for heading, states in pairwise(lines):
        if (gpu := _DCGMI_GPU.fullmatch(heading)) and (row := _DCGMI_LINKS.fullmatch(states)):
            links = [NvLink(link=n, active=state == "U") for n, state in enumerate(row[1].split(" ")) if state in "UD"]
            gpus.append(Gpu(index=int(gpu[1]), nvlinks=tuple(links)))
    return GpuReading(source="dcgmi", gpus=tuple(gpus)) if gpus else None


def _with_link(gpu: Gpu, link: int, value: str) -> Gpu:
    speed = number(value)
    if speed is None and value.casefold() != "<inactive>":
        return msgspec.structs.replace(gpu, errors={**gpu.errors, f"nvlink.{link}": value})
    read = NvLink(link=link, active=speed is not None, speed_mb_per_s=None if speed is None else speed * 1000)
    return msgspec.structs.replace(gpu, nvlinks=(*(gpu.nvlinks or ()), read))
