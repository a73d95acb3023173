"""The result of one simulated run, in hours and numbers."""

from collections import Counter
from dataclasses import dataclass, field

from muster_tainter.simulation.ledger import BUCKETS, Cause, Ledger

_HOUR_S = 3600.0


@dataclass
class Tally:
    """Counts during a run. interruptions: of jobs, by cause. refusals: taints that a budget withheld. harmless: faults
    that began while their node had no job. repeated: faults of a component that was broken already. isolated: devices
    that were kept out of use alone. tests: planned checks that measured something; found: hidden faults that
    they found. job_s: time of running jobs; requeued_s: device-seconds that interrupted jobs
    waited for."""

    faults: int = 0
    interruptions: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    refusals: int = 0
    withheld_s: float = 0.0
    harmless: int = 0
    repeated: int = 0
    isolated: int = 0
    tests: int = 0
    found: int = 0
    repairs: int = 0
    given_up: int = 0
    job_s: float = 0.0
    requeued_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """hours: accelerator-hours by :class:`Cause`; they add up to ``total_h``. ettr: effective training time ratio, the
    kept work by the time in which jobs ran or waited to run again. mtbi_h: hours that a job ran between two
    interruptions; None without one. out_share: accelerators out of use, over time. most_out: the highest number."""

    begin: float
    end: float
    nodes: int
    devices: int
    hours: dict[str, float]
    tally: Tally
    out_share: tuple[float, ...]
    most_out: int

    @property
    def total_h(self) -> float:
        return self.devices * (self.end - self.begin) / _HOUR_S

    @property
    def goodput(self) -> float:
        """Share of all accelerator-hours."""
        return self.hours[Cause.GOODPUT] / self.total_h

    @property
    def ettr(self) -> float:
        ran = sum(self.hours[cause] for cause in (Cause.GOODPUT, Cause.OVERHEAD, Cause.DRAIN, Cause.REWORK))
        whole = ran + self.tally.requeued_s / _HOUR_S
        return self.hours[Cause.GOODPUT] / whole if whole else 0.0

    @property
    def interruptions(self) -> int:
        return sum(self.tally.interruptions.values())

    @property
    def mtbi_h(self) -> float | None:
        return self.tally.job_s / _HOUR_S / self.interruptions if self.interruptions else None

    @property
    def kept_out_h(self) -> float:
        """Accelerator-hours of hardware that works, kept out of use by the policy."""
        return self.hours[Cause.TEST] + self.hours[Cause.HOLD] + self.hours[Cause.SPARE]


def make_outcome(ledger: Ledger, tally: Tally, nodes: int, devices: int) -> Outcome:
    bucket_s = (ledger.end - ledger.begin) / BUCKETS
    return Outcome(
        begin=ledger.begin,
        end=ledger.end,
        nodes=nodes,
        devices=devices,
        hours={cause: ledger.booked_s[cause] / _HOUR_S for cause in Cause},
        tally=tally,
        out_share=tuple(out / bucket_s / devices for out in ledger.out_s),
        most_out=ledger.most_out,
    )
