"""A judge with a clock of its own, and lines for it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import Catalogue
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.sources.records import KernelLine

START = 1_700_000_000.0  # any moment; times in these tests are seconds after it


class Bench:
    """A judge whose clock stands at the newest line, unless ``now_s`` is set further on."""

    def __init__(self, catalogue: Catalogue, **options: object) -> None:
        self._catalogue, self._options = catalogue, options
        self.now_s = 0.0
        self.judge = self._new()

    def _new(self) -> KernelLogJudge:
        return KernelLogJudge(self._catalogue, clock=lambda: START + self.now_s, **self._options)  # type: ignore[arg-type]  # any

    def feed(self, text: str, after_s: float = 0.0, *, user: bool = False) -> list[Sign | AllClear]:
        self.now_s = max(self.now_s, after_s)
        return self.judge.take(
            KernelLine(
                text=text,
                at=START + after_s,
                uptime_s=100.0 + after_s,
                level=4,
                facility=1 if user else 0,
                origin=Origin.USER if user else Origin.KERNEL,
                seq=1,
                stamp=f"[{100 + after_s:12.6f}]",
            )
        )

    def tick(self, after_s: float) -> list[Sign | AllClear]:
        self.now_s = max(self.now_s, after_s)
        return self.judge.tick(START + after_s)

    def next_tick_s(self) -> float | None:
        due = self.judge.next_tick()
        return None if due is None else due - START

    def restart(self) -> str:
        """A new judge goes on from the old one's state, as it comes back from a file."""
        saved = msgspec.json.encode(self.judge.state())
        self.judge = self._new()
        return self.judge.restore(msgspec.json.decode(saved))


def short(events: list[Sign | AllClear]) -> list[tuple[object, ...]]:
    """What matters of each: (component, reason, verdict, class), or (component, how, reasons, classes)."""
    return [
        (e.component, e.reason, str(e.verdict), str(e.fault_class))
        if isinstance(e, Sign)
        else (e.component, e.how, e.reasons, tuple(map(str, e.classes)))
        for e in events
    ]


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="session")
def samples() -> Path:
    return Path(__file__).parents[1] / "samples"


@pytest.fixture(scope="session")
def new_bench(catalogue: Catalogue) -> Callable[..., Bench]:
    return lambda rows=catalogue, **options: Bench(rows, **options)


@pytest.fixture
def bench(new_bench: Callable[..., Bench]) -> Bench:
    return new_bench()


@pytest.fixture(scope="session")
def summarize() -> Callable[[list[Sign | AllClear]], list[tuple[object, ...]]]:
    """``summarize(events)``: see :func:`short`."""
    return short
