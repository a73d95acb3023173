"""Reads the links. NVML's reading contains them; for `nvidia-smi -q -x` a second command adds them."""

import msgspec

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia.gpu import GpuReading
from muster_checks.nvidia.judge import read_counted
from muster_checks.nvidia.models import gpu_models
from muster_checks.nvlink import NAME, NvlinkParameters
from muster_checks.nvlink.judge import counters, judge
from muster_checks.nvlink.parse import parse, parse_dcgmi

STATUS_TIMEOUT_S = 10.0


async def probe(node: NodeView, parameters: NvlinkParameters) -> list[Finding]:
    reading, series = await read_counted(node, NAME, counters)
    if reading.source == "nvidia-smi":
        reading = await _with_links(node, reading)
    return judge(reading, series, gpu_models(parameters.expected), parameters)


def judge_recorded(text: bytes, parameters: NvlinkParameters) -> list[Finding] | None:
    from muster_checks.nvidia.smi_xml import is_smi_xml  # an agent never needs its XML parser

    if is_smi_xml(text):
        raise NotHere(
            "the output of nvidia-smi -q -x does not contain NVLinks: record `nvidia-smi nvlink --status`",
            "NotRecorded",
        )
    reading = parse(text) or parse_dcgmi(text)
    return None if reading is None else judge(reading, {}, gpu_models(parameters.expected), parameters)


async def _with_links(node: NodeView, reading: GpuReading) -> GpuReading:
    output = await node.commands.run(("nvidia-smi", "nvlink", "--status"), timeout_s=STATUS_TIMEOUT_S)
    status = parse(output.stdout) if output.ok else None
    if status is None:
        raise CannotTell(f"nvidia-smi nvlink --status: {output.trouble or 'unexpected output'}", "SmiFailed")
    links = {gpu.uuid: gpu for gpu in status.gpus}
    return msgspec.structs.replace(
        reading,
        gpus=tuple(
            msgspec.structs.replace(gpu, nvlinks=links[gpu.uuid].nvlinks, errors=gpu.errors | links[gpu.uuid].errors)
            if gpu.uuid in links
            else gpu
            for gpu in reading.gpus
        ),
    )
