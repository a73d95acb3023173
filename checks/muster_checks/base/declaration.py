"""The declaration of a check: name, cost, parameters and texts. CLI, /status, chart schema and docs are made from it.

A check is either a snapshot (``probe``: each run returns findings) or a stream (``stream``: signs as they occur).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args

import msgspec
from pydantic import BaseModel, ConfigDict

from muster_checks.base.commands import Commands, LocalCommands
from muster_checks.base.counter_history import History
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Origin, Verdict


class Cost(StrEnum):
    """``LIGHT`` may run beside a job at any time; ``HEAVY`` uses the accelerator or the network exclusively."""

    LIGHT = "light"
    HEAVY = "heavy"


class Parameters(BaseModel):
    """Base class of every check's parameters: unknown names are errors, and names include their units."""

    # built on first use: building thirty models at start would cost an agent 3 MB
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    sends: ClassVar[frozenset[str]] = frozenset()
    """Names of parameters that decide where this node sends packets."""

    configured: ClassVar[frozenset[str]] = frozenset()
    """Names of parameters that only the configuration sets: no query and no request, whoever sends it."""

    @classmethod
    def guarded(cls) -> frozenset[str]:
        """Parameters that an unauthenticated caller may not set: paths that are read here, and packet destinations."""
        files = {
            name for name, field in cls.model_fields.items() if Path in (field.annotation, *get_args(field.annotation))
        }
        return cls.sends | files


class VolumeTrialResult(Protocol):
    """The outcome of one trial volume claim (the check ``pvc``).

    Times are seconds since the claim was created; None: not reached. ``said``: the message from the cluster.
    """

    @property
    def stage(self) -> str: ...  # pragma: no cover - the interface
    @property
    def storage_class(self) -> str: ...  # pragma: no cover - the interface
    @property
    def bound_after_s(self) -> float | None: ...  # pragma: no cover - the interface
    @property
    def written_after_s(self) -> float | None: ...  # pragma: no cover - the interface
    @property
    def said(self) -> str: ...  # pragma: no cover - the interface


class VolumeTrialLender(Protocol):
    """Creates a trial volume claim on behalf of a check that has no rights to do so."""

    async def try_claim(
        self,
        node: str,
        *,
        storage_class: str,
        size_mib: int,
        image: str,
        bind_timeout_s: float,
        write_timeout_s: float,
    ) -> VolumeTrialResult:
        """Never raises because of the cluster's behaviour, and deletes everything it creates."""
        ...  # pragma: no cover - the interface


class LogOpener(Protocol):
    """Opens files of the kubelet's log folder; see muster_checks.containerlog.log_folder."""

    @property
    def folder(self) -> Path: ...  # pragma: no cover - the interface
    def open(self, parts: Sequence[str], /) -> int: ...  # pragma: no cover - the interface


class PodLogs(Protocol):
    """Provides the check containerlog with what only the agent has."""

    async def accelerator_pods(self) -> frozenset[str]:
        """NAMESPACE/NAME of the pods that hold an accelerator. Raises CannotTell."""
        ...  # pragma: no cover - the interface

    def opener(self, folder: Path, /) -> LogOpener: ...  # pragma: no cover - the interface


class LogEcho(Protocol):
    """A line that the agent itself writes into the kernel log, to learn whether it is read."""

    def may_be_in(self, text: bytes, /) -> bool:
        """Whether ``text``, of one line or several, contains it."""
        ...  # pragma: no cover - the interface

    def take(self, line: str, /) -> bool:
        """Whether ``line`` is it, and so nothing to judge."""
        ...  # pragma: no cover - the interface


@dataclass(frozen=True)
class NodeView:
    """The node as a check sees it: everything that a check may access.

    root:      prefix of /proc, /sys and /dev (``/`` or a test's folder)
    commands:  runs the node's tools
    history:   earlier readings of counters
    name:      the node's name in the cluster; empty outside a cluster
    volumes:   creates volume claims, for which a check itself has no rights; None if nobody provides it
    opened:    file descriptors by path, for files that this process can no longer open
    pod_logs:  the pods with accelerators, and their log files; None if nobody provides them
    echo:      a line of the agent's own in the kernel log; None if it writes none
    """

    root: Path = Path("/")
    commands: Commands = field(default_factory=LocalCommands)
    history: History = field(default_factory=History)
    name: str = ""
    volumes: "VolumeTrialLender | None" = None
    opened: Mapping[Path, int] = field(default_factory=dict, hash=False)
    pod_logs: "PodLogs | None" = None
    echo: "LogEcho | None" = None

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One sign of trouble from a stream, e.g. a matching kernel line. ``at``: seconds since the epoch (UTC)."""

    component: str
    reason: str
    verdict: Verdict
    message: str
    at: float
    fault_class: FaultClass = FaultClass.NONE
    measurements: tuple[Measurement, ...] = ()
    count: int = 1
    origin: Origin | None = None
    line: str = ""  # the whole line including its time, for the log


class AllClear(msgspec.Struct, frozen=True, kw_only=True):
    """A stream reports that findings are over.

    how: ``driver`` (the driver reported it, e.g. a completed reset) or ``quiet`` (no sign for the time set in the row).

    Clears the findings of ``component`` whose reason is in ``reasons`` (empty: any) and whose class is in
    ``classes`` (empty: any).
    """

    component: str
    at: float
    how: str
    reasons: tuple[str, ...] = ()
    classes: tuple[FaultClass, ...] = ()
    line: str = ""


class StepTotals(msgspec.Struct, frozen=True):
    """What one rank of a job has reported about its training steps, by the log of its pod.

    job, rank, gpu, stage: the program's word. steps: the last completed one, counted from 0, plus one. seconds: their
    sum since the stream was opened. work: of the same steps, in the program's own unit; None: some of its lines do not
    say
    """

    namespace: str
    pod: str
    job: str
    rank: int
    gpu: str
    steps: int
    seconds: float
    stage: str = ""
    work: float | None = None


Probe = Callable[[NodeView, Any], Awaitable[Sequence[Finding]]]
"""Reads and judges. Raises NotHere, CannotTell or Unreadable (muster_checks.base.execution) if there is nothing to
judge.
"""

Resume = Callable[[NodeView, Sequence[Finding]], None]
"""Called after a restart with the findings that are still open, so that the check can restore its own state."""

Recorded = Callable[[bytes, Any], Sequence[Finding] | None]
"""Judges recorded output of the check's tool; returns None for text of another kind. Raises as a probe does."""


@dataclass(frozen=True)
class Check:
    """The declaration of one check.

    name:        as typed in ``check=``; lower case letters and digits
    period_s:    default period of a snapshot; None for a stream, and for a check that runs only on request
    shares:      checks of one node with the same value share an expensive reading if they start together
    timeout_s:   a run that takes longer is UNKNOWN
    devices:     device kinds it looks at (``gpu``, ``nic``, ``ipu``, ``host`` …)
    probe:       reads and judges a snapshot
    stream:      a stream's factory; see :mod:`muster_checks.dmesg`
    recorded:    judges a file of recorded output, for `muster check --sample`
    resume:      receives the findings that were open before a restart
    one_device:  of a heavy check that can test one device alone and then disturbs nothing that others share (no fabric,
                 no link to the host): its parameter for the device's PCI address; empty: it cannot
    enabled:     whether it exists on a node whose settings do not mention it
    reads:       what it reads or runs, for people: files, tools and the packages that contain them
    ran_on:      where it has run: real hardware, or recorded output and its origin
    """

    name: str
    description: str
    cost: Cost
    parameters: type[Parameters]
    timeout_s: float
    devices: tuple[str, ...]
    period_s: float | None = None
    probe: Probe | None = None
    stream: "Callable[[NodeView, Any, bytes | None], CheckStream] | None" = None
    recorded: Recorded | None = None
    resume: Resume | None = None
    shares: str = ""
    one_device: str = ""
    reads: str = ""
    ran_on: str = ""
    examples: tuple[str, ...] = field(default=())
    enabled: bool = True

    def __post_init__(self) -> None:
        if (self.probe is None) == (self.stream is None):
            raise ValueError(f"check {self.name!r}: declare either probe or stream")
        if self.one_device and self.one_device not in self.parameters.model_fields:
            raise ValueError(f"check {self.name!r}: one_device: {self.one_device!r} is none of its parameters")


class CheckStream:
    """A running stream check. Created with the position where an earlier one stopped (opaque bytes), or None.

    ``events()`` yields batches until cancelled. After the caller has processed a batch, ``position()`` is the point to
    resume from without reading a line twice or skipping one. ``caught_up`` is True once everything that existed at the
    start has been read.
    """

    caught_up: bool = False

    def events(self) -> AsyncIterator[list[Sign | AllClear]]:
        raise NotImplementedError  # pragma: no cover - the interface

    def position(self) -> bytes:
        raise NotImplementedError  # pragma: no cover - the interface

    async def drain(self) -> None:
        """Return once every line that was in the source at the time of the call has been read and yielded."""
        raise NotImplementedError  # pragma: no cover - the interface

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        """A person closed these findings: drop the stream's state for them (counts, windows, the worst verdict). The
        next sign fires anew."""

    def counts(self) -> Mapping[str, int]:
        """What the stream has read since it was opened, by outcome, for metrics."""
        return {}

    def step_times(self) -> Sequence[StepTotals]:
        """Step times of jobs that the stream has read, for metrics."""
        return ()

    def health(self) -> str:
        """Empty while the source can be read; otherwise the reason why not (the check is then UNKNOWN)."""
        return ""
