"""Simulates the kubelets of all simulated nodes: updates the status of pods that are bound to them.

It runs no containers. It watches pods and writes a status only when it changes. In an idle cluster it sends no requests
to the API server, so that tests can measure idle clusters.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Self

import httpx2

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Conflict, NotFound
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.reflector import Reflector
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_sandbox.simulation.pods import (
    ADDRESS,
    READY_URL,
    BadScript,
    DesiredPodState,
    PodScript,
    SimulatedPod,
    desired_state,
    read_script,
    status_patch,
)

PROBE_PERIOD_S = 1.0
WORKERS = 16
STOP_S = 10.0  # time for running writes at the end

Probe = Callable[[SimulatedPod], bool | Awaitable[bool | None] | None]
log = logging.getLogger(__name__)


@dataclass
class _PodLife:
    """State of one pod (by uid) in addition to its API object."""

    uid: str
    seen_at: float
    address: str
    deleted_at: float | None = None
    exit_code: int | None = None
    ready: bool | None = None


class Kubelets:
    """An async context manager; inside it, bound pods run.

    script: what a pod does; by default its annotation ``testbed.muster.dev/script`` (see pods.Script)
    probe:  called once a second for each running pod; returns its readiness, or None to use the script. By default it
            requests the URL in the annotation ``testbed.muster.dev/readyz``, if there is one
    node:   the node whose pods these kubelets run; by default all nodes
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        script: Callable[[SimulatedPod], PodScript] = read_script,
        probe: Probe | None = None,
        node: Callable[[str], bool] = bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._script = script
        self._probe = probe
        self._node = node
        self._clock = clock
        # a kubelet reports the state of its pods every 10 s, whatever failed before; with its jitter, 6 s is 9 at most
        self._queue: WorkQueue[str] = WorkQueue(backoff=Backoff(0.05, 6.0))
        self._lives: dict[str, _PodLife] = {}
        self._addresses = 0
        self._watching: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._reflector: Reflector[SimulatedPod] = Reflector(
            client,
            "/api/v1/pods",
            SimulatedPod,
            on_change=self._on_change,
            # only bound pods; the scheduler handles the others
            params={"fieldSelector": "spec.nodeName!="},
        )

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(run_workers(self._queue, self._sync, workers=WORKERS))
        self._watching = asyncio.create_task(self._watch_and_probe())
        synced = asyncio.create_task(self._reflector.wait_synced())
        await asyncio.wait({self._watching, synced}, return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        if self._watching.done():
            self._watching.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watching, writing = self._watching, self._writing
        self._watching = self._writing = None
        if watching is None or writing is None:
            return
        watching.cancel()
        await asyncio.wait({watching})
        # let running writes finish: a call that is cancelled while it opens a connection would leak it
        self._queue.shut_down()
        _, late = await asyncio.wait({writing}, timeout=STOP_S)
        if late:
            writing.cancel()
            await asyncio.wait(late)
        if not watching.cancelled() and (fault := watching.exception()) is not None and error is None:
            raise fault  # an exception from the caller's probe must not look like an idle cluster

    @property
    def pods(self) -> Mapping[str, SimulatedPod]:
        """Bound pods by ``namespace/name``, from the watch."""
        return MappingProxyType(dict(self._reflector.store))

    def finish(self, key: str, exit_code: int = 0) -> None:
        """End the containers of pod ``namespace/name``. Raises KeyError if no such pod is bound."""
        self._life(key).exit_code = exit_code
        self._queue.add(key)

    def set_ready(self, key: str, ready: bool | None) -> None:
        """Set its readiness; None: use the script again. Raises KeyError."""
        self._life(key).ready = ready
        self._queue.add(key)

    async def wait_for(
        self, key: str, condition: Callable[[SimulatedPod | None], bool], *, timeout_s: float = 120.0
    ) -> None:
        """Wait until the condition holds for the pod (None: it does not exist). Raises TimeoutError, or the error that
        ended the kubelets."""
        deadline = self._clock() + timeout_s
        while not condition(self._reflector.store.get(key)):
            if self._watching is not None and self._watching.done():
                self._watching.result()
            if self._clock() > deadline:
                raise TimeoutError(f"{key} after {timeout_s:.0f} s: {self._reflector.store.get(key)}")
            await asyncio.sleep(0.02)

    async def _watch_and_probe(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._probe_for_ever())

    def _on_change(self, key: str, _old: SimulatedPod | None, new: SimulatedPod | None) -> None:
        if new is None:
            self._lives.pop(key, None)
            return
        if not self._node(new.spec.node_name):
            return
        life = self._lives.get(key)
        if life is None or life.uid != new.metadata.uid:
            life = _PodLife(new.metadata.uid, self._clock(), self._address_for(new))
            self._lives[key] = life
        if new.metadata.deletion_timestamp and life.deleted_at is None:
            life.deleted_at = self._clock()
        self._queue.add(key)

    async def _sync(self, key: str) -> None:
        pod, life = self._reflector.store.get(key), self._lives.get(key)
        if pod is None or life is None:
            return
        try:
            script = self._script(pod)
        except BadScript as error:
            log.warning("%s: the pod is not changed", error)
            return
        want = self._desired_state(pod, life, script)
        try:
            if want.gone:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": life.uid}}
                await self._client.delete(pod.path, options)
                return
            code = script.exit_code if life.exit_code is None else life.exit_code
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body = status_patch(pod, want, exit_code=code, address=life.address, now=now)
            if body is not None:
                self._reflector.observe(
                    await self._client.patch(f"{pod.path}/status", body, kind="strategic", type=SimulatedPod)
                )
        except (NotFound, Conflict):
            return  # deleted, or another pod of that name: the watch reports it
        if want.again_s is not None:
            self._queue.add_after(key, want.again_s)

    def _desired_state(self, pod: SimulatedPod, life: _PodLife, script: PodScript) -> DesiredPodState:
        now = self._clock()
        return desired_state(
            script,
            now - life.seen_at,
            deleted_since_s=None if life.deleted_at is None else now - life.deleted_at,
            ready=life.ready,
            exit_code=life.exit_code,
            phase=pod.status.phase,
        )

    async def _probe_for_ever(self) -> None:
        async with httpx2.AsyncClient(trust_env=False, timeout=PROBE_PERIOD_S) as http:
            while True:
                started = self._clock()
                running = [pod for key, pod in self._reflector.store.items() if self._is_probed(key, pod)]
                async with asyncio.TaskGroup() as group:
                    for pod in running:
                        group.create_task(self._ask(http, pod))
                await asyncio.sleep(max(0.0, PROBE_PERIOD_S - (self._clock() - started)))

    def _is_probed(self, key: str, pod: SimulatedPod) -> bool:
        if key not in self._lives or pod.status.phase != "Running" or pod.metadata.deletion_timestamp:
            return False
        return self._probe is not None or READY_URL in pod.metadata.annotations

    async def _ask(self, http: httpx2.AsyncClient, pod: SimulatedPod) -> None:
        ready: bool | None
        if self._probe is not None:
            answer = self._probe(pod)
            ready = await answer if inspect.isawaitable(answer) else answer
        else:
            try:
                ready = (await http.get(pod.metadata.annotations[READY_URL])).is_success
            except (httpx2.HTTPError, httpx2.InvalidURL):
                ready = False
        life = self._lives.get(pod.key)
        if life is not None and life.uid == pod.metadata.uid and life.ready != ready:
            life.ready = ready
            self._queue.add(pod.key)

    def _life(self, key: str) -> _PodLife:
        life = self._lives.get(key)
        if life is None:
            raise KeyError(f"{key} is not bound to a simulated node; bound pods: {', '.join(sorted(self._lives)[:10])}")
        return life

    def _address_for(self, pod: SimulatedPod) -> str:
        given = pod.metadata.annotations.get(ADDRESS) or pod.status.pod_ip
        if given:
            return given
        # from 127.64.0.1 on: all of 127.0.0.0/8 is local, and other programs do not use this range
        self._addresses += 1
        number = self._addresses
        return f"127.{64 + (number >> 16) % 64}.{number >> 8 & 255}.{number & 255}"
