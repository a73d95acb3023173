"""Finds out whether work runs on one GPU, while its siblings may be in use.

The same sources as for the node (idle_detector.py), each asked about this GPU alone: which pods the kubelet names as
holders of the device, which processes have its device file open, and whether its memory is in use. What cannot be told
apart counts as work on this GPU: a device plug-in's pod, a claim whose devices the kubelet does not name, a diagnosis
by DCGM.
"""

import asyncio
from collections.abc import Awaitable, Callable

from muster_agent.idle.device_users import DeviceScan, scan_device_users
from muster_agent.idle.occupancy import RunScope
from muster_agent.idle.pod_resources import DeviceHolder, HoldersUnknown, PodResources
from muster_agent.idle.vendor_tools import query_gpu_memory
from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread
from muster_checks.nvidia.driver_files import device_minor, read_driver_files

MEMORY_S = 60.0  # NVML times out after 30 s
_PROCESSES_TIME = 2 / 3  # share of the time limit of an answer: 1 s
_UNKNOWN = "unknown: "


class DeviceOccupancy:
    def __init__(self, view: NodeView, kubelet: PodResources, *, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._view = view
        self._kubelet = kubelet
        self._sleep = sleep
        self._scanning: asyncio.Task[DeviceScan] | None = None

    async def find_work(self, scope: RunScope, *, driver: bool = True) -> str:
        """Who uses ``scope.device``, or why that cannot be told; empty if nobody does. driver: ask NVML too, whose
        figures include a running test. Never raises."""
        try:
            return await self._find_work(scope, driver=driver)
        except HoldersUnknown as error:
            return f"{_UNKNOWN}{error}"
        except TimeoutError:
            return f"{_UNKNOWN}the node's processes or NVML did not answer in time"
        except Exception as error:
            return f"{_UNKNOWN}{str(error) or type(error).__name__}"

    async def _find_work(self, scope: RunScope, *, driver: bool) -> str:
        holders = await self._kubelet.holders()
        if reason := holder_of(holders or [], scope):
            return reason
        text = read_driver_files(self._view).get(scope.device)
        minor = None if text is None else device_minor(text)
        if minor is None:
            return f"{_UNKNOWN}the driver's files in /proc do not say which device file GPU {scope.device} has"
        scan = await self._scan(f"/dev/nvidia{minor}")
        if reason := _user_of(scan, holders is not None, starting=driver):
            return reason
        if not driver:
            return ""
        async with asyncio.timeout(MEMORY_S):
            return await query_gpu_memory(self._view, scope.device, sleep=self._sleep)

    async def _scan(self, device: str) -> DeviceScan:
        """Raises TimeoutError. A scan that hangs is not started again beside itself."""
        if self._scanning is not None and not self._scanning.done():
            raise TimeoutError
        limit_s = self._kubelet.answer_s * _PROCESSES_TIME
        scan = in_thread(self._view, scan_device_users, self._view, limit_s=limit_s, device=device)
        self._scanning = asyncio.create_task(scan)
        done, _ = await asyncio.wait([self._scanning], timeout=self._kubelet.answer_s)
        if not done:
            raise TimeoutError
        return self._scanning.result()


def holder_of(holders: list[DeviceHolder], scope: RunScope) -> str:
    """The pod that holds the device, or may hold it; empty if none does."""
    for holder in holders:
        if scope.beside and holder.pod.startswith(scope.beside):
            continue
        what = ", ".join(holder.resources)
        if holder.names is None or not scope.held_as:
            return f"pod {holder.pod} holds {what}, and it is not known which devices"
        if holder.names & set(scope.held_as):
            return f"pod {holder.pod} holds {what}, with GPU {scope.device}"
    return ""


def _user_of(scan: DeviceScan, by_kubelet: bool, *, starting: bool) -> str:
    """by_kubelet: the kubelet names the pods, so processes that are not visible do not matter. starting: the test has
    not begun, so a diagnosis of DCGM is somebody else's."""
    for user in scan.users:
        if starting or not user.diagnosis:
            return f"process {user.name} (PID {user.pid}) holds {user.device}"
    if by_kubelet:
        return ""
    if scan.hidden or scan.unreadable or scan.cut_short:
        return f"{_UNKNOWN}not all processes of the node can be inspected, and there is no kubelet socket"
    return ""
