"""Finds out whether work runs on this node's accelerators.

Three witnesses, the cheapest first; one that says "in use" is enough:
- the kubelet: a pod holds an accelerator (pod_resources.py);
- /proc: a process has one open (device_users.py);
- the vendors' tools (vendor_tools.py), before a heavy check only.

Where the kubelet's socket is there but does not answer, the node is not idle: better a test too late than a job
disturbed. Where there is none, processes decide, if they can be seen.

The boot time is read here and not by psutil, which has one /proc for the whole process: the view may be of another
node's tree (``--root``).
"""

import asyncio
import logging
from collections.abc import Callable

from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_agent.idle.device_users import DeviceScan, has_accelerators, scan_device_users
from muster_agent.idle.pod_resources import DeviceHolder, HoldersUnknown, PodResources
from muster_agent.idle.vendor_tools import query_vendor_tools
from muster_checks.base.bounded_read import read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread

log = logging.getLogger(__name__)

LOOK_S = 10.0  # a job's end is told within it; a question to the kubelet costs 1 ms of processor time
PROCESSES_SHARE = 0.0005  # of a core: each look at 1,000 processes costs 0.1 s of it
PROCESSES_LONGEST_S = 300.0
PROCESSES_LONGEST_ALONE_S = 60.0  # where no kubelet tells of pods
PROCESSES_TIME = 2 / 3  # of what an answer may take: 1 s
DRIVER_S = 60.0  # NVML gives up after 30 s
DRIVER_AGAIN_S = 300.0  # 0.1 s of processor time each
FORGIVEN_S = 60.0  # a kubelet that is started anew says nothing of the node
FORGOTTEN_S = 600.0  # a job may have come and gone unseen
UNKNOWN = "cannot be told: "


class KubeletLost(Exception):
    """The kubelet can only be asked again by an agent that starts anew, with the rights of its start."""


class IdleDetector:
    """An Occupancy (occupancy.py) that looks.

    view:       the node; a process's devices are looked for under its root
    kubelet:    may have been opened before the process gave up its rights
    since:      what :attr:`idle_since` was when an earlier agent of this boot ended; 0: in use, or not known
    on_change:  called when the node has become idle or busy
    """

    def __init__(
        self,
        view: NodeView,
        kubelet: PodResources,
        *,
        since: float = 0.0,
        on_change: Callable[[], None] = lambda: None,
        clock: AgentClock = SYSTEM_CLOCK,
    ) -> None:
        known = _booted_at(view) <= since <= clock.wall() and since > 0
        self.idle_since: float | None = since if known else None
        self.busy = "" if known else f"{UNKNOWN}not looked at yet"
        self._view = view
        self._kubelet = kubelet
        self._on_change = on_change
        self._clock = clock
        self._answer_s = kubelet.answer_s  # /proc is given as long
        self._pods = ""
        self._users = ""
        self._driver = ""
        self._alone = False
        self._scanning: asyncio.Task[DeviceScan | Exception] | None = None
        self._processes_due = self._driver_due = float("-inf")
        self._seen_idle = clock.monotonic() if known else float("-inf")
        self._interrupted: float | None = None  # idle_since, while it cannot be told whether it still is
        self._unreadable_logged = False

    def close(self) -> None:
        self._kubelet.close()

    async def find_work(self, beside: str = "", /) -> str:
        """Asks all witnesses. Takes what NVML takes: a second, DRIVER_S at worst."""
        try:
            holders, diagnosis = await asyncio.gather(self._ask_kubelet(), self._ask_processes())
            if not (reason := self._decide(holders, driver=False, beside=beside) or diagnosis):
                await self._ask_drivers()
                reason = self._driver
            self._settle(self._decide(holders))
        except Exception as error:
            reason = self._unknown_because(error)
        return reason

    async def find_foreign_work(self, beside: str = "", /) -> str:
        """The kubelet and foreign processes only: what a test holds is in NVML's figures, too. Takes answer_s."""
        try:
            holders, _ = await asyncio.gather(self._ask_kubelet(), self._ask_processes())
            return self._decide(holders, driver=False, beside=beside)
        except Exception as error:
            return self._unknown_because(error)

    async def run(self) -> None:
        """Raises KubeletLost."""
        try:
            while not self._kubelet.lost:
                try:
                    await self._look_cheaply()
                except Exception as error:
                    self._settle(self._unknown_because(error))
                await self._clock.sleep(LOOK_S)
            raise KubeletLost(f"{self._kubelet.path}: to be opened again, for which this process has no right any more")
        finally:
            self.close()

    async def _look_cheaply(self) -> None:
        """Costs next to nothing: the rarely asked stand by what they last said."""
        before = self._pods
        holders = await self._ask_kubelet()
        if before and not self._pods:
            self._processes_due = float("-inf")  # a pod has gone, its processes as well?
        if not holders and self._clock.monotonic() >= self._processes_due:
            await self._ask_processes()
        if self._driver and self._clock.monotonic() >= self._driver_due:
            await self._ask_drivers()
        self._settle(self._decide(holders))

    async def _ask_kubelet(self) -> list[DeviceHolder] | None:
        """None: there is none, or it does not tell."""
        try:
            holders = await self._kubelet.holders()
        except HoldersUnknown as untold:
            self._pods = f"{UNKNOWN}{untold}"
            return None
        self._pods = ""
        self._alone = holders is None
        if holders:
            self._pods = _holders_reason(holders)
        return holders

    async def _ask_processes(self) -> str:
        """Returns whose diagnostics DCGM runs, which only before a test of ours is somebody else's work."""
        if not has_accelerators(self._view):
            self._users, self._processes_due = "", self._clock.monotonic() + LOOK_S
            return ""
        if self._scanning is None or self._scanning.done():
            self._scanning = asyncio.create_task(self._scan())
        # not cancelled with its caller, and not begun again while it hangs
        await asyncio.wait([self._scanning], timeout=self._answer_s)
        scan = self._scanning.result() if self._scanning.done() else TimeoutError("/proc does not answer")
        if isinstance(scan, Exception):
            self._users = f"{UNKNOWN}the node's processes: {scan}"
            return ""
        longest_s = PROCESSES_LONGEST_ALONE_S if self._alone else PROCESSES_LONGEST_S
        pause_s = min(scan.cpu_s / PROCESSES_SHARE, longest_s)
        self._processes_due = self._clock.monotonic() + max(0.0, pause_s - LOOK_S / 2)
        self._users = _users_reason(scan)
        if scan.unreadable and not self._unreadable_logged:
            self._unreadable_logged = True
            log.warning(
                "%d processes cannot be looked into, which takes CAP_SYS_PTRACE: whether they use an accelerator is "
                "left to the kubelet",
                scan.unreadable,
            )
        diagnoses = [user for user in scan.users if user.diagnosis]
        return f"DCGM runs diagnostics ({diagnoses[0].name}, PID {diagnoses[0].pid})" if diagnoses else ""

    async def _scan(self) -> DeviceScan | Exception:
        try:
            return await in_thread(self._view, scan_device_users, self._view, limit_s=self._answer_s * PROCESSES_TIME)
        except Exception as error:  # told by whoever waits
            return error

    async def _ask_drivers(self) -> None:
        self._driver_due = self._clock.monotonic() + DRIVER_AGAIN_S
        async with asyncio.timeout(DRIVER_S):
            self._driver = await query_vendor_tools(self._view, sleep=self._clock.sleep)

    def _decide(self, holders: list[DeviceHolder] | None, *, driver: bool = True, beside: str = "") -> str:
        """Why the node is not idle: what is known outranks what cannot be told. What pods whose name begins with
        ``beside`` hold does not count, what a process has open does, whosever it is.

        Processes that cannot be seen matter only where no kubelet speaks for them.
        """
        pods = self._pods
        if holders and beside:
            pods = _holders_reason([each for each in holders if not each.pod.startswith(beside)])
        reasons = [pods, self._users, self._driver if driver else ""]
        known = [reason for reason in reasons if reason and not reason.startswith(UNKNOWN)]
        if known:
            return known[0]
        if pods or holders is None:
            return next(filter(None, reasons), "")
        return ""

    def _settle(self, reason: str) -> None:
        """Takes ``reason`` as what is so now, and tells of a change."""
        now, was_idle = self._clock.monotonic(), self.idle_since is not None
        if reason.startswith(UNKNOWN):
            if was_idle and now - self._seen_idle < FORGIVEN_S:
                return
            self._interrupted = self._interrupted if self.idle_since is None else self.idle_since
            self.idle_since, self.busy = None, reason
        elif reason:
            self._interrupted = self.idle_since = None
            self.busy = reason
        else:
            if self.idle_since is None:
                same = self._interrupted is not None and now - self._seen_idle < FORGOTTEN_S
                self.idle_since = self._interrupted if same else self._clock.wall()
            self._interrupted, self._seen_idle, self.busy = None, now, ""
        if was_idle is not (self.idle_since is not None):
            log.info("the node is %s", f"in use: {self.busy}" if self.busy else "idle")
            self._on_change()

    def _unknown_because(self, error: Exception) -> str:
        log.error("whether the node is idle cannot be told: %r", error, exc_info=error)
        return f"{UNKNOWN}{str(error) or type(error).__name__}"


def _holders_reason(holders: list[DeviceHolder]) -> str:
    if not holders:
        return ""
    more = f", and {len(holders) - 1} more pods have accelerators" if len(holders) > 1 else ""
    return f"pod {holders[0].pod} holds {', '.join(holders[0].resources)}{more}"


def _users_reason(scan: DeviceScan) -> str:
    users = [user for user in scan.users if not user.diagnosis]
    if users:
        more = f", and {len(users) - 1} more processes have accelerators" if len(users) > 1 else ""
        return f"process {users[0].name} (PID {users[0].pid}) holds {users[0].device}{more}"
    if scan.hidden:
        return f"{UNKNOWN}the agent sees its own container's processes only, and no kubelet's socket (hostPID: true)"
    if scan.unreadable:
        return f"{UNKNOWN}{scan.unreadable} processes cannot be looked into, and there is no kubelet's socket"
    if scan.cut_short:
        return f"{UNKNOWN}there are more processes than there is time to look at"
    return ""


def _booted_at(view: NodeView) -> float:
    """Seconds since the epoch; 0 where it is not known. Source: proc(5), /proc/stat."""
    for line in (read_text(view.path("/proc/stat")) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "btime" and value.strip().isdigit():
            return float(value)
    return 0.0
