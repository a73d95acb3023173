"""Where every accelerator-hour of the fleet went. The books close: the causes add up to all hours of the fleet."""

from dataclasses import dataclass, field
from enum import StrEnum

BUCKETS = 200  # of the series over time


class Cause(StrEnum):
    """GOODPUT: work that was kept. All other hours are lost or idle:

    OVERHEAD: starts of jobs and checkpoints, without an interruption. FAULT: broken hardware, out of use or not.
    TEST: repaired, but not proved yet: proofs, their pauses, and a person who clears. HOLD: proved and held down.
    DRAIN: work that an eviction by Muster cost, and the start after it. REWORK: the same after a fault.
    WAIT: healthy and free while jobs wait that do not fit. SPARE: kept free for faults. IDLE: no job waits.
    """

    GOODPUT = "goodput"
    OVERHEAD = "overhead"
    FAULT = "fault"
    TEST = "test"
    HOLD = "hold"
    DRAIN = "drain"
    REWORK = "re-work"
    WAIT = "wait"
    SPARE = "spare"
    IDLE = "idle"


# of a node without a job; FREE is booked as WAIT or IDLE, BUSY by the job
FREE, BUSY = "free", "busy"
OUT = (Cause.FAULT, Cause.TEST, Cause.HOLD)
_AT_REST = (FREE, BUSY, Cause.FAULT, Cause.TEST, Cause.HOLD, Cause.SPARE)
Parts = tuple[tuple[str, int], ...]
"""The devices of a node: (what they are booked as, how many)."""


@dataclass
class Ledger:
    """begin, end: seconds since the epoch. booked_s: accelerator-seconds. out_s: device-seconds out of use in each of
    the BUCKETS parts of the time; most_out: the highest number of devices out of use at once."""

    begin: float
    end: float
    booked_s: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    out_s: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    most_out: int = 0
    devices: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_AT_REST, 0))
    waiting: bool = False
    _now: float = -1.0
    _bucket_s: float = 1.0

    def __post_init__(self) -> None:
        self._now = self.begin
        self._bucket_s = (self.end - self.begin) / BUCKETS

    def advance(self, now: float) -> None:
        """Book the time since the last call. Call it before anything changes at ``now``."""
        span, devices = now - self._now, self.devices
        if span <= 0:
            return
        booked = self.booked_s
        for cause in (*OUT, Cause.SPARE):
            if devices[cause]:
                booked[cause] += devices[cause] * span
        if devices[FREE]:
            booked[Cause.WAIT if self.waiting else Cause.IDLE] += devices[FREE] * span
        out = sum(devices[cause] for cause in OUT)
        if out:
            self.most_out = max(self.most_out, out)
            self._book_out(out, now)
        self._now = now

    def _book_out(self, out: int, now: float) -> None:
        at = self._now
        place = int((at - self.begin) / self._bucket_s)
        while at < now and place < BUCKETS:
            until = min(self.begin + (place + 1) * self._bucket_s, now)
            self.out_s[place] += out * (until - at)
            at, place = until, place + 1

    def move(self, before: Parts, after: Parts) -> None:
        for state, devices in before:
            self.devices[state] -= devices
        for state, devices in after:
            self.devices[state] += devices

    def book(self, cause: Cause, device_seconds: float) -> None:
        """Time of a job, whose devices were BUSY."""
        if device_seconds:
            self.booked_s[cause] += device_seconds
