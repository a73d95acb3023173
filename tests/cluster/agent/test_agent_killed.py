"""An agent that is killed at fifty random points tells of every change of a verdict, and of none twice.

The world changes, also while the agent is dead, once the change before it stands in the NodeHealth: what nobody was
told of and no disk took cannot be known after a kill. It changes before the disk has the last change only where a test
says so: of two changes that were told and not saved, the NodeHealth names one.
"""

import contextlib
import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.checks.memory.test_memory import DIMM0, MC, sound
from tests.cluster.agent.test_agent_publishing import AgentProcess, Bench, bench, until  # noqa: F401 - a fixture

from muster_checks.registry import load_registry
from muster_checks.testing.recorded import lay_out

KILLS = 50
BOOT = {"/proc/sys/kernel/random/boot_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}
XID = "[{n}.0] NVRM: Xid (PCI:0000:{n:02x}:00): 79, GPU has fallen off the bus.\n"


class World:
    """A node with a DIMM that breaks and is replaced, and a kernel log; what its agent has told of both.

    told: (verdict, number of the open finding, 0: none) at each change, as first seen in the NodeHealth
    """

    def __init__(self, bench: Bench, folder: Path, rng: random.Random) -> None:  # noqa: F811 - the fixture
        self.bench, self.root, self.rng = bench, folder / "root", rng
        self.broken, self.lines, self.kills = False, 0, 0
        self.told: list[tuple[str, int]] = []
        self.node = bench.node()
        lay_out(self.root, sound() | BOOT)
        place = folder / "agent"
        place.mkdir()
        checks: dict[str, object] = {name: {"enabled": False} for name in load_registry()}
        checks["dmesg"] = {"parameters": {"start": "boot"}}
        checks["memory"] = {"period": "5s", "parameters": {"first_interval_s": 0}}
        config = place / "agent.yaml"
        config.write_text(json.dumps({"checks": checks}))
        flags = ("--config", str(config), "--pod-uid", "pod-1", "--root", str(self.root))
        self.agent = AgentProcess(place, self.node, bench.kubeconfig, *flags)
        bench.agents.append(self.agent)

    def change(self) -> None:
        self.broken = not self.broken
        count = self.root / f"{MC}/dimm0/dimm_ue_count".lstrip("/")
        fresh = count.with_name("fresh")  # a count that is half written would be no count, for a moment
        fresh.write_text(f"{3 if self.broken else 0}\n")
        fresh.replace(count)

    def write_line(self) -> None:
        self.lines += 1
        self.agent.write(XID.format(n=self.lines))

    def ask(self) -> None:
        """Have the check run now; whoever asks an agent that is killed gets no answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.agent.get("/status?check=memory")

    def check(self, name: str) -> dict[str, Any]:
        checks = self.bench.status(self.node).get("checks", [])
        return next((check for check in checks if check["name"] == name), {})

    def is_told(self) -> bool:
        """The NodeHealth says how the DIMM is now. Noted at its first sight."""
        memory = self.check("memory")
        if memory.get("verdict") != ("FAIL" if self.broken else "PASS"):
            return False
        numbers = [finding["occurrence"] for finding in memory.get("findings", [])]
        now = memory["verdict"], (numbers or [0])[0]
        if not self.told or self.told[-1] != now:
            self.told.append(now)
        return True

    def may_change(self) -> bool:
        """The last change is told, and all of them are saved."""
        return self.is_told() and len(self._saved("memory")) >= len(self.told)

    def begin(self) -> None:
        """Until the first verdict of both checks is on the disk: of a check that never ran there is no PASS."""
        self.run_until_told()
        until(lambda: self._saved("memory") and self._saved("dmesg"), what="the first verdicts are saved")

    def _saved(self, check: str) -> list[dict[str, Any]]:
        """Changes of a check that are on the disk."""
        with contextlib.suppress(OSError, LookupError):
            saved: list[dict[str, Any]] = json.loads(self.agent.state.read_bytes())["checks"][check]["changes"]
            return saved
        return []

    def run_until_told(self) -> None:
        if self.agent.process is None:
            self.agent.start()
        self.ask()
        until(self.is_told, what="the NodeHealth tells of the DIMM")

    def kill(self) -> None:
        self.kills += self.agent.process is not None
        self.agent.kill()

    def kill_somewhere(self) -> None:
        """Begin something, and kill the agent somewhere in it."""
        places = [self._starting, self._running, self._telling, self._saving, self._resting, self._unsaved]
        somewhere = self.rng.choice(places)
        if self.may_change() and self.rng.random() < 0.5:
            self.change()  # while it is dead, or alive and not yet asked
        somewhere()
        self.kill()

    def _starting(self) -> None:
        self.kill()
        self.agent.start(wait=False)
        self._soon(2.0)

    def _running(self) -> None:
        """While a run is under way, or the lines of the log are read."""
        self._alive()
        if self.may_change():
            self.change()
        asking = threading.Thread(target=self.ask)
        asking.start()
        self.write_line()
        self._soon(0.06)
        self.kill()
        asking.join()

    def _telling(self) -> None:
        """Between the finding and the PATCH, or between the PATCH and the disk."""
        self._alive()
        if self.may_change():
            self.change()
        self.ask()
        self._soon(0.02)

    def _saving(self) -> None:
        """Told, and maybe not saved yet."""
        self.run_until_told()
        self._soon(0.1)

    def _unsaved(self) -> None:
        """Told, and never saved: as if the disk had been slow to the end."""
        self.run_until_told()
        until(self.may_change, what="it is saved")
        before = self.agent.state.read_bytes()
        self.change()
        self.run_until_told()
        self.kill()
        self.agent.state.write_bytes(before)
        if self.rng.random() < 0.7:
            self.change()
        self.run_until_told()
        until(self.may_change, what="it is saved")

    def _resting(self) -> None:
        self.run_until_told()
        self.write_line()
        self._soon(0.5)

    def _alive(self) -> None:
        if self.agent.process is None:
            self.agent.start()

    def _soon(self, most_s: float) -> None:
        time.sleep(self.rng.random() ** 2 * most_s)  # early moments are the crowded ones


@pytest.mark.parametrize("seed", [1])
def test_fifty_kills_lose_no_change_of_a_verdict_and_double_none(
    bench: Bench,  # noqa: F811 - the fixture
    tmp_path: Path,
    seed: int,
) -> None:
    world = World(bench, tmp_path, random.Random(seed))
    world.begin()
    while world.kills < KILLS:
        world.kill_somewhere()
    world.run_until_told()
    told_lines = until(lambda: (f := world.check("dmesg").get("findings", [])) and len(f) == world.lines and f)

    breaks = sum(verdict == "FAIL" for verdict, _ in world.told)
    memory = world.check("memory")
    context = f"{world.told}\n{json.dumps(memory, indent=1)}\n{world.agent.log[-4000:]}"
    assert breaks >= 5, "the world has hardly changed"
    # every break is a firing of its own, under the next number
    assert [number for verdict, number in world.told if verdict == "FAIL"] == list(range(1, breaks + 1)), context
    assert [verdict for verdict, _ in world.told] == alternating(len(world.told)), context
    assert memory["lastOccurrence"] == breaks
    over = [(each["component"], each["occurrence"], each["how"]) for each in memory["cleared"]]
    ended = breaks - world.broken
    assert over == [(DIMM0, n, "run") for n in range(1, ended + 1)][-16:], context
    # the history has each change once
    code, text = world.agent.get("/report")
    assert code == 200
    changes = {check["check"]: check["changes"] for check in json.loads(text)["checks"]}
    assert [change["to"] for change in changes["memory"]] == alternating(len(world.told)), context
    assert [change.get("from", "") for change in changes["memory"]] == ["", *alternating(len(world.told) - 1)]
    times = [change["at"] for change in changes["memory"]]
    assert times == sorted(times)
    # and each line of the log is one firing, told once
    found = {finding["component"]: (finding["occurrence"], finding.get("count", 1)) for finding in told_lines}
    assert found == {f"gpu/0000:{n:02x}:00.0": (n, 1) for n in range(1, world.lines + 1)}
    assert [change["to"] for change in changes["dmesg"]] == ["PASS", "FAIL"]


def alternating(length: int) -> list[str]:
    return ["FAIL" if n % 2 else "PASS" for n in range(length)]
