"""Finds out whether work runs on the node's accelerators.

Three sources, the cheapest first; if any of them reports work, the node is busy:
- the kubelet: a pod holds an accelerator (pod_resources.py);
- /proc: a process has an accelerator open (device_users.py);
- the vendors' tools (vendor_tools.py), only before a heavy check.

If the kubelet's socket exists but does not answer, the node does not count as idle: a delayed test is better than a
disturbed job. Without a socket, the processes decide, provided that they are visible.

The boot time is read here because psutil has one /proc for the whole process, while the view may be another node's tree
(``--root``).
"""

import asyncio
import logging
from collections.abc import Callable

from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_agent.idle.device_occupancy import DeviceOccupancy
from muster_agent.idle.device_users import DeviceScan, has_accelerators, scan_device_users
from muster_agent.idle.occupancy import WHOLE_NODE, RunScope
from muster_agent.idle.pod_resources import DeviceHolder, HoldersUnknown, PodResources
from muster_agent.idle.vendor_tools import query_vendor_tools
from muster_checks.base.bounded_read import read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread

log = logging.getLogger(__name__)

LOOK_S = 10.0  # interval; a request to the kubelet takes 1 ms of CPU time
PROCESSES_SHARE = 0.0005  # of a core: each scan of 1,000 processes takes 0.1 s of CPU time
PROCESSES_LONGEST_S = 300.0
PROCESSES_LONGEST_ALONE_S = 60.0  # if there is no kubelet
PROCESSES_TIME = 2 / 3  # share of the time limit of an answer: 1 s
DRIVER_S = 60.0  # NVML times out after 30 s
DRIVER_AGAIN_S = 300.0  # each query takes 0.1 s of CPU time
FORGIVEN_S = 60.0  # while the kubelet restarts, the node stays idle
FORGOTTEN_S = 600.0  # after a longer gap, a job may have run unseen, so the idle time starts again
UNKNOWN = "unknown: "


class KubeletLost(Exception):
    """The connection to the kubelet can be opened again only by a restarted agent, with the privileges of its start."""


class IdleDetector:
    """The implementation of Occupancy (occupancy.py).

    view:       the node, under whose root processes and their devices are read
    kubelet:    possibly connected before the process dropped its privileges
    since:      :attr:`idle_since` at the end of an earlier agent in this boot; 0: busy, or unknown
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
        self.busy = "" if known else f"{UNKNOWN}the agent has not checked it yet"
        self._view = view
        self._kubelet = kubelet
        self._device = DeviceOccupancy(view, kubelet, sleep=clock.sleep)
        self._on_change = on_change
        self._clock = clock
        self._answer_s = kubelet.answer_s  # also the limit for reading /proc
        self._pods = ""
        self._users = ""
        self._driver = ""
        self._alone = False
        self._scanning: asyncio.Task[DeviceScan | Exception] | None = None
        self._processes_due = self._driver_due = float("-inf")
        self._seen_idle = clock.monotonic() if known else float("-inf")
        self._interrupted: float | None = None  # idle_since before the state became unknown
        self._unreadable_logged = False

    def close(self) -> None:
        self._kubelet.close()

    async def find_work(self, scope: RunScope = WHOLE_NODE, /) -> str:
        """Query all sources. Takes as long as NVML: a second, at most DRIVER_S."""
        if scope.device:
            return await self._device.find_work(scope)
        try:
            holders, diagnosis = await asyncio.gather(self._query_kubelet(), self._query_processes())
            if not (reason := self._decide(holders, driver=False, beside=scope.beside) or diagnosis):
                await self._query_drivers()
                reason = self._driver
            self._settle(self._decide(holders))
        except Exception as error:
            reason = self._unknown_because(error)
        return reason

    async def find_foreign_work(self, scope: RunScope = WHOLE_NODE, /) -> str:
        """Query the kubelet and the processes only, because NVML's figures include the running test. Takes answer_s."""
        if scope.device:
            return await self._device.find_work(scope, driver=False)
        try:
            holders, _ = await asyncio.gather(self._query_kubelet(), self._query_processes())
            return self._decide(holders, driver=False, beside=scope.beside)
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
            raise KubeletLost(f"{self._kubelet.path}: cannot reconnect after dropping privileges: restart the agent")
        finally:
            self.close()

    async def _look_cheaply(self) -> None:
        """Query the kubelet, and the other sources only when they are due; otherwise their last answer counts."""
        before = self._pods
        holders = await self._query_kubelet()
        if before and not self._pods:
            self._processes_due = float("-inf")  # a pod has ended; have its processes?
        if not holders and self._clock.monotonic() >= self._processes_due:
            await self._query_processes()
        if self._driver and self._clock.monotonic() >= self._driver_due:
            await self._query_drivers()
        self._settle(self._decide(holders))

    async def _query_kubelet(self) -> list[DeviceHolder] | None:
        """None: there is no kubelet, or it does not answer."""
        try:
            holders = await self._kubelet.holders()
        except HoldersUnknown as error:
            self._pods = f"{UNKNOWN}{error}"
            return None
        self._pods = ""
        self._alone = holders is None
        if holders:
            self._pods = _holders_reason(holders)
        return holders

    async def _query_processes(self) -> str:
        """Return who runs diagnostics of DCGM. They are foreign work only before a heavy check starts."""
        if not has_accelerators(self._view):
            self._users, self._processes_due = "", self._clock.monotonic() + LOOK_S
            return ""
        if self._scanning is None or self._scanning.done():
            self._scanning = asyncio.create_task(self._scan())
        # not cancelled with its caller, and not started again while it hangs
        await asyncio.wait([self._scanning], timeout=self._answer_s)
        scan = self._scanning.result() if self._scanning.done() else TimeoutError("reading /proc timed out")
        if isinstance(scan, Exception):
            self._users = f"{UNKNOWN}cannot read the node's processes: {scan}"
            return ""
        longest_s = PROCESSES_LONGEST_ALONE_S if self._alone else PROCESSES_LONGEST_S
        pause_s = min(scan.cpu_s / PROCESSES_SHARE, longest_s)
        self._processes_due = self._clock.monotonic() + max(0.0, pause_s - LOOK_S / 2)
        self._users = _users_reason(scan)
        if scan.unreadable and not self._unreadable_logged:
            self._unreadable_logged = True
            log.warning(
                "cannot inspect %d processes without CAP_SYS_PTRACE: relying on the kubelet for whether they use "
                "accelerators",
                scan.unreadable,
            )
        diagnoses = [user for user in scan.users if user.diagnosis]
        return f"DCGM runs diagnostics ({diagnoses[0].name}, PID {diagnoses[0].pid})" if diagnoses else ""

    async def _scan(self) -> DeviceScan | Exception:
        try:
            return await in_thread(self._view, scan_device_users, self._view, limit_s=self._answer_s * PROCESSES_TIME)
        except Exception as error:  # the caller reports it
            return error

    async def _query_drivers(self) -> None:
        self._driver_due = self._clock.monotonic() + DRIVER_AGAIN_S
        async with asyncio.timeout(DRIVER_S):
            self._driver = await query_vendor_tools(self._view, sleep=self._clock.sleep)

    def _decide(self, holders: list[DeviceHolder] | None, *, driver: bool = True, beside: str = "") -> str:
        """Why the node is not idle; a known reason outranks an unknown state. Devices of pods whose name begins with
        ``beside`` do not count, but devices that processes have open always do.

        Processes that are not visible matter only without a kubelet.
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
        """Set the state from ``reason`` and report a change."""
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
        log.error("cannot find out whether the node is idle: %r", error, exc_info=error)
        return f"{UNKNOWN}{str(error) or type(error).__name__}"


def _holders_reason(holders: list[DeviceHolder]) -> str:
    if not holders:
        return ""
    more = f", and {len(holders) - 1} more pods hold accelerators" if len(holders) > 1 else ""
    return f"pod {holders[0].pod} holds {', '.join(holders[0].resources)}{more}"


def _users_reason(scan: DeviceScan) -> str:
    users = [user for user in scan.users if not user.diagnosis]
    if users:
        more = f", and {len(users) - 1} more processes hold accelerators" if len(users) > 1 else ""
        return f"process {users[0].name} (PID {users[0].pid}) holds {users[0].device}{more}"
    if scan.hidden:
        return f"{UNKNOWN}the agent sees only its own container's processes and no kubelet socket: set hostPID: true"
    if scan.unreadable:
        return f"{UNKNOWN}cannot inspect {scan.unreadable} processes, and there is no kubelet socket"
    if scan.cut_short:
        return f"{UNKNOWN}the node has too many processes to inspect in time"
    return ""


def _booted_at(view: NodeView) -> float:
    """Seconds since the epoch; 0 if unknown. Source: proc(5), /proc/stat."""
    for line in (read_text(view.path("/proc/stat")) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "btime" and value.strip().isdigit():
            return float(value)
    return 0.0
