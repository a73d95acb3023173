"""The check ``containerlog``: what the programs in pods print about their accelerators, from the node's log files.

Off by default. Reading: log_folder.py opens files, container_log.py follows those of one container, and log_reader.py
those of all pods of interest. Judging: patterns.py and judge.py decide what a line means. step_line.py and
step_times.py read the times of training steps, for metrics. stream.py connects them.

Tenants write the lines, and may be able to write the files, so neither is trusted.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from muster_checks.base.declaration import Check, CheckStream, Cost, NodeView, Parameters
from muster_checks.containerlog.line_pattern import (
    PATTERN_LIMIT,
    PATTERNS_LIMIT,
    Known,
    LinePattern,
    check_patterns,
    step_pattern,
)

FILES_LIMIT = 64


def _listed(value: object) -> object:
    """A comma-separated text, as on a command line, is a list."""
    return tuple(filter(None, value.split(","))) if isinstance(value, str) else value


Namespace = Annotated[str, Field(pattern=r"^[-a-z0-9*?]{1,63}$")]


class ContainerlogParameters(Parameters):
    configured = frozenset(
        {"known", "patterns", "pods", "namespaces", "folder", "files", "cpu_share", "show_lines"}
        | {"step_times", "step_pattern"}
    )
    known: Annotated[tuple[Known, ...], BeforeValidator(_listed)] = Field(
        default=("cuda", "nccl", "poplar"), description="pattern sets that are part of Muster; they only warn"
    )
    patterns: tuple[LinePattern, ...] = Field(
        default=(),
        max_length=PATTERNS_LIMIT,
        description="patterns of your own: `name`, `pattern` (RE2), `class`, and `verdict` (WARN by default)",
    )
    pods: Literal["accelerator", "all"] = Field(
        default="accelerator",
        description="which pods: those that hold an accelerator according to the kubelet, or all of `namespaces`",
    )
    namespaces: Annotated[tuple[Namespace, ...], BeforeValidator(_listed)] = Field(
        default=(), max_length=64, description="only pods of these namespaces (with * and ?); empty: of any"
    )
    folder: Path = Field(
        default=Path("/var/log/pods"), description="the kubelet's folder of logs, in this process's file system"
    )
    files: int = Field(default=FILES_LIMIT, ge=1, le=FILES_LIMIT, description="containers whose logs are followed")
    cpu_share: float = Field(default=0.02, ge=0.001, le=1, description="share of one core for reading, on average")
    show_lines: bool = Field(
        default=False,
        description="findings show the line: to everyone who reaches the agent's port or may read NodeHealths",
    )

    step_times: bool = Field(
        default=False,
        description="read lines with muster_step{…}: times of training steps, served as the metric muster_step_seconds",
    )
    step_pattern: str = Field(
        default="",
        max_length=PATTERN_LIMIT,
        description="with step_times: lines of another format, as RE2 with the groups rank, step and seconds, and if "
        "you like job, gpu, stage and work",
    )

    @field_validator("step_pattern")
    @classmethod
    def _step_groups(cls, text: str) -> str:
        return step_pattern(text) if text else text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.known and not self.patterns and not self.step_times:
            raise ValueError("expected patterns, step_times, or known: a list of cuda, nccl and poplar")
        if self.step_pattern and not self.step_times:
            raise ValueError("step_pattern: has no effect without step_times: true")
        if self.pods == "all" and not self.namespaces:
            raise ValueError("pods: all: expected namespaces as well: those of the jobs, and not Muster's own")
        check_patterns("patterns", self.patterns)
        return self


def _open_stream(node: NodeView, parameters: ContainerlogParameters, position: bytes | None) -> CheckStream:
    from muster_checks.containerlog.stream import open_stream  # here: it loads re2

    return open_stream(node, parameters, position)


CONTAINERLOG = Check(
    name="containerlog",
    description="errors of CUDA, NCCL and Poplar that programs print in pods with accelerators",
    cost=Cost.LIGHT,
    parameters=ContainerlogParameters,
    timeout_s=30.0,
    devices=("pod",),
    stream=_open_stream,
    enabled=False,
    reads="/var/log/pods (the container runtime's log files), and the kubelet's pod-resources socket",
    ran_on="real kubelets (1.20, 1.36) and containerd, with a pod that prints a recorded line; rotation on files made "
    "as kubelets make them; which pods have accelerators, on recorded answers of a kubelet; CRI-O by its documentation",
)
