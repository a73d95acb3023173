"""Turns matching lines into findings: one for each pod and pattern.

A line of a program proves nothing about the node: every user of the cluster can print it. So the patterns that are part
of Muster only warn, and so do others unless their owner says otherwise.

A line may also contain secrets, and everyone on the network may read findings. So a finding shows it only if a
parameter says so; the agent's log always does.
"""

from collections.abc import Iterable

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Origin, Verdict, shorten
from muster_checks.containerlog.log_reader import LineHit, Notice, Turn
from muster_checks.dmesg.open_findings import OpenFinding, OpenFindings

QUIET_S = 3600.0  # a warning ends after an hour without such a line, as those of other logs
NOTICE_EVERY_S = 60.0  # of the same notice, while its cause lasts
LOGGED_BYTES = 4096  # of a line in the agent's log

Event = Sign | AllClear


class ContainerLogJudge:
    def __init__(self, open_findings: Iterable[OpenFinding] = (), *, show_lines: bool) -> None:
        self._show_lines = show_lines
        self._findings = OpenFindings.load(list(open_findings))
        self._noticed: dict[tuple[str, str], float] = {}

    def take(self, turn: Turn, now: float) -> list[Event]:
        """now: epoch seconds."""
        events: list[Event] = []
        for hit in turn.hits.values():
            events += self._findings.take(_sign(hit, now, show_line=self._show_lines), QUIET_S)
        self._noticed = {key: at for key, at in self._noticed.items() if 0 <= now - at < NOTICE_EVERY_S}
        for notice in turn.notices:
            key = notice.pod, notice.reason
            if key not in self._noticed:
                self._noticed[key] = now
                events += self._findings.take(_notice_sign(notice, now), QUIET_S)
        return [*events, *self._findings.tick(now)]

    def next_tick(self) -> float | None:
        return self._findings.next_tick()

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        self._findings.forget(component, reasons)
        self._noticed.clear()

    def dump(self) -> list[OpenFinding]:
        return self._findings.dump()


def component_of(pod: str) -> str:
    return f"pod/{pod}" if pod else "host"


def _sign(found: LineHit, now: float, *, show_line: bool) -> Sign:
    hit = found.hit
    shown = found.text if show_line else "a line of the pod's log matches; the agent's log shows it"
    message = f"{hit.prefix}: {shown}" if hit.prefix else shown
    return Sign(
        component=component_of(found.pod),
        reason=hit.reason,
        verdict=hit.verdict,
        message=shorten(message.strip()),
        at=min(found.at, now),
        fault_class=hit.fault_class,
        count=found.count,
        origin=Origin.USER,
        line=shorten(f"pod {found.pod}: {found.text.strip()}", LOGGED_BYTES),
    )


def _notice_sign(notice: Notice, now: float) -> Sign:
    return Sign(
        component=component_of(notice.pod),
        reason=notice.reason,
        verdict=Verdict.WARN,
        message=shorten(notice.message),
        at=now,
        origin=Origin.USER,
    )
