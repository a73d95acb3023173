"""One declaration gives a check its name, cost, parameters and text; CLI, /status, chart schema and docs come from it.

A check is either a snapshot (``probe``: run it, get findings) or a stream (``stream``: signs as they happen).
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
    """``LIGHT`` may run beside a job at any time; ``HEAVY`` takes the accelerator or the network."""

    LIGHT = "light"
    HEAVY = "heavy"


class Parameters(BaseModel):
    """Base of every check's parameters: unknown names are errors, units are in the names."""

    # built when first used: thirty models would cost an agent 3 MB at its start
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    sends: ClassVar[frozenset[str]] = frozenset()
    """Parameters that name where this node's packets go."""

    @classmethod
    def guarded(cls) -> frozenset[str]:
        """What a stranger on the network may not choose: files that are read here, and where packets go."""
        files = {
            name for name, field in cls.model_fields.items() if Path in (field.annotation, *get_args(field.annotation))
        }
        return cls.sends | files


class VolumeTrialResult(Protocol):
    """What came of a volume claim that was tried (the check ``pvc``).

    Times are seconds since the claim was made; None: not reached. ``said``: the cluster's words.
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
    """Lends the right to try a volume claim."""

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
        """Never raises for what the cluster does, and leaves nothing behind."""
        ...  # pragma: no cover - the interface


@dataclass(frozen=True)
class NodeView:
    """The node as a check sees it: everything a check may ask of the world.

    root:      prefix of /proc, /sys and /dev (``/`` or a test's folder)
    commands:  runs the node's tools
    history:   what counters read at earlier runs
    name:      the node's name in the cluster; empty without one
    volumes:   makes volume claims with rights that a check of its own does not have; None where nobody lends them
    opened:    descriptors by path, of what this process may not open any more
    """

    root: Path = Path("/")
    commands: Commands = field(default_factory=LocalCommands)
    history: History = field(default_factory=History)
    name: str = ""
    volumes: "VolumeTrialLender | None" = None
    opened: Mapping[Path, int] = field(default_factory=dict, hash=False)

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One sign of trouble from a stream, e.g. one matching kernel line. ``at``: seconds since the epoch (UTC)."""

    component: str
    reason: str
    verdict: Verdict
    message: str
    at: float
    fault_class: FaultClass = FaultClass.NONE
    measurements: tuple[Measurement, ...] = ()
    count: int = 1
    origin: Origin | None = None
    line: str = ""  # the whole line with its time, for the log


class AllClear(msgspec.Struct, frozen=True, kw_only=True):
    """A stream says that findings are over.

    how: ``driver`` (the driver's own word, e.g. a completed reset) or ``quiet`` (nothing for as long as its row says).

    Clears the findings of ``component`` whose reason is in ``reasons`` (empty: any) and whose class is in
    ``classes`` (empty: any).
    """

    component: str
    at: float
    how: str
    reasons: tuple[str, ...] = ()
    classes: tuple[FaultClass, ...] = ()
    line: str = ""


Probe = Callable[[NodeView, Any], Awaitable[Sequence[Finding]]]
"""Reads and judges. Raises NotHere, CannotTell or Unreadable (muster_checks.base.execution) when there is nothing to
judge.
"""

Resume = Callable[[NodeView, Sequence[Finding]], None]
"""After a restart: gets what is open from before, to put back what the check has to remember of it."""

Recorded = Callable[[bytes, Any], Sequence[Finding] | None]
"""Judges recorded output of the check's tool; None where the text is of another kind. Raises as a probe does."""


@dataclass(frozen=True)
class Check:
    """The declaration of one check.

    name:        as typed in ``check=``; lower case letters and digits
    period_s:    default period of a snapshot; None for a stream, which never rests, and for what runs when asked only
    shares:      checks of one node with the same word share a costly reading if they start together
    timeout_s:   after it a run is UNKNOWN
    devices:     device kinds it looks at (``gpu``, ``nic``, ``ipu``, ``host`` …)
    probe:       a snapshot's reader and judge
    stream:      a stream's factory; see :mod:`muster_checks.dmesg`
    recorded:    judges a file of recorded output, for `muster check --sample`
    resume:      told of the findings that were open before a restart
    reads:       what it reads or runs, for people: files, tools and the packages that have them
    ran_on:      where it has run: real hardware, or recorded output of which origin
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
    reads: str = ""
    ran_on: str = ""
    examples: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if (self.probe is None) == (self.stream is None):
            raise ValueError(f"check {self.name!r}: declare either probe or stream")


class CheckStream:
    """A running stream check. Made with the position where an earlier one stopped (opaque bytes), or None.

    ``events()`` yields batches until cancelled; after a batch has been taken in, ``position()`` is where to go on
    from so that no line is read twice or skipped. ``caught_up`` is True once everything that was there at the start
    has been read.
    """

    caught_up: bool = False

    def events(self) -> AsyncIterator[list[Sign | AllClear]]:
        raise NotImplementedError  # pragma: no cover - the interface

    def position(self) -> bytes:
        raise NotImplementedError  # pragma: no cover - the interface

    async def drain(self) -> None:
        """Return when every line that was in the source at the call has been read and yielded."""
        raise NotImplementedError  # pragma: no cover - the interface

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        """These findings were closed by somebody's word: what the stream remembers of them (counts, windows, the worst
        verdict) is over, and the next sign is a new firing."""

    def counts(self) -> Mapping[str, int]:
        """What it has seen since it was opened, by what became of it, for metrics."""
        return {}

    def health(self) -> str:
        """Empty while the source can be read; else why not (the check is then UNKNOWN)."""
        return ""
