"""gpu_check() declares a check on the GPU reading that all NVIDIA checks share.

The check's folder needs only a judge.py: muster_checks.nvidia.probe takes the reading, and a recorded sample is the
output of `nvidia-smi -q -x`. A check that reads more than the GPUs has its own probe.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters, Probe, Recorded
from muster_checks.base.vocabulary import Finding
from muster_checks.nvidia import KNOWN_GPUS

if TYPE_CHECKING:
    from muster_checks.nvidia.gpu import GpuReading

READS = (
    "NVML (libnvidia-ml.so.1, part of the NVIDIA driver; Debian: libnvidia-ml1) in a child process, "
    "else `nvidia-smi -q -x` (Debian: nvidia-smi, Ubuntu: nvidia-utils-*)"
)
RAN_ON = (
    "nvidia-smi output that NVIDIA publishes in k8s-test-infra (8 H100 of driver 580, a T4 of driver 595, and from its "
    "mock driver a GB200 node with a lost GPU); NVML against a stand-in library; not on a real GPU"
)
READ_LIMIT_S = 75.0
"""Timeout of a check: the NVML child and nvidia-smi have 30 s each."""


@dataclass(frozen=True)
class GpuJudge:
    """A check's judge.py.

    judge:    judges every GPU of a reading, given the counter series and the check's parameters
    counters: the values of each reading to keep, by name; None if the check needs no series
    """

    judge: "Callable[[GpuReading, Mapping[str, CounterSeries], Any], list[Finding]]"
    counters: "Callable[[GpuReading], Mapping[str, float]] | None" = None


def gpu_check(
    name: str,
    parameters: type[Parameters],
    load_judge: Callable[[], GpuJudge] | None = None,
    *,
    description: str,
    examples: tuple[str, ...],
    probe: Probe | None = None,
    recorded: Recorded | None = None,
    devices: tuple[str, ...] = ("gpu",),
    timeout_s: float = READ_LIMIT_S,
    reads: str = READS,
    ran_on: str = RAN_ON,
) -> Check:
    """A light check on the shared reading, run once a minute.

    load_judge: imports the check's judge.py when the check first runs
    probe, recorded: for a check that reads more than the GPUs; by default they come from ``load_judge``
    """
    if load_judge is not None:
        probe = probe or _probe_by(load_judge, name)
        recorded = recorded or recorded_by(load_judge)
    return Check(
        name=name,
        description=description,
        cost=Cost.LIGHT,
        parameters=parameters,
        timeout_s=timeout_s,
        devices=devices,
        period_s=60.0,
        shares="nvml",
        probe=probe,
        recorded=recorded,
        resume=resume_gpus,
        reads=reads,
        ran_on=ran_on,
        examples=examples,
    )


def _probe_by(load_judge: Callable[[], GpuJudge], name: str) -> Probe:
    async def probe(node: NodeView, parameters: Any) -> list[Finding]:
        from muster_checks.nvidia.judge import read_counted
        from muster_checks.nvidia.probe import read_gpus

        gpu_judge = load_judge()
        if gpu_judge.counters is None:
            return gpu_judge.judge(await read_gpus(node), {}, parameters)
        reading, series = await read_counted(node, name, gpu_judge.counters)
        return gpu_judge.judge(reading, series, parameters)

    return probe


def recorded_by(load_judge: Callable[[], GpuJudge]) -> Recorded:
    def judge_recorded(text: bytes, parameters: Any) -> list[Finding] | None:
        from muster_checks.nvidia.smi_xml import parse_if_smi_xml  # an agent never needs its XML parser

        reading = parse_if_smi_xml(text)
        return None if reading is None else load_judge().judge(reading, {}, parameters)

    return judge_recorded


def resume_gpus(node: NodeView, findings: Sequence[Finding]) -> None:
    """After a restart: a GPU with an open finding existed before, so it counts as missing if it is gone."""
    addresses = [finding.component.removeprefix("gpu/") for finding in findings if finding.component.startswith("gpu/")]
    node.history.note(KNOWN_GPUS, {address: 1.0 for address in addresses if ":" in address})
