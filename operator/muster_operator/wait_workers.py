"""``muster wait-workers``: the launcher's init container. It copies kubectl, then waits until every worker is ready.

The log shows which workers it waits for and why, with one line per change. It reads the job's pods with the launcher's
Role, which names them, so each worker has a watch of its own. Failures of the API server are tolerated.
"""

import argparse
import asyncio
import logging
import re
import shutil
import signal
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ConfigError
from muster_kube.api.pods import ContainerStatus
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.reflector import Reflector
from muster_kube.process.command_line import add_log_arguments, print_error
from muster_kube.process.logs import configure_logging
from muster_operator.job import names
from muster_operator.job.snapshot import JobPod

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_TERMINATED = 143  # the convention of shells: 128 + SIGTERM
TIMEOUT_S = 30.0
WATCHED = 64  # workers that are watched at the same time, each over its own connection
MESSAGE_LIMIT = 300  # characters of a message of the kubelet or the scheduler
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Outlook:
    """waits: by worker, why it is not ready. failed: by worker, why it never will be."""

    waits: Mapping[str, str]
    failed: Mapping[str, str]


def judge_workers(pods: Mapping[str, JobPod], workers: Sequence[str]) -> Outlook:
    """``pods``: by name; pods that are not in ``workers`` are ignored."""
    waits: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name in workers:
        pod = pods.get(name)
        if pod is None:
            waits[name] = "not created yet"
        elif pod.metadata.deletion_timestamp:
            # whatever its phase: it will be replaced
            waits[name] = "being deleted"
        elif (end := _end_of(pod)) is not None:
            failed[name] = end
        elif not _is_ready(pod):
            waits[name] = _describe_wait(pod)
    return Outlook(waits, failed)


def _is_ready(pod: JobPod) -> bool:
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
    return pod.status.phase == "Running" and ready


def _end_of(pod: JobPod) -> str | None:
    status = pod.status
    if status.phase == "Succeeded":
        return "ended with exit code 0 before the launcher started"
    if status.phase != "Failed":
        return None
    details = [_sentence(status.reason, status.message)] if status.reason or status.message else []
    for container in (*status.init_container_statuses, *status.container_statuses):
        end = container.state.terminated
        if end is not None and (end.exit_code or end.signal):
            code = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
            details.append(f"container {container.name}: {_sentence(end.reason, code)}")
            if end.message:
                details.append(_shorten(end.message))
    return "; ".join(details) or "failed without a reason"


def _describe_wait(pod: JobPod) -> str:
    status = pod.status
    for condition in status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{status.phase}: {_sentence(condition.reason, condition.message)}"
    waiting = [
        _describe_container(each)
        for each in (*status.init_container_statuses, *status.container_statuses)
        # PodInitializing only means that an init container still runs
        if each.state.waiting is not None and each.state.waiting.reason != "PodInitializing"
    ]
    if waiting:
        return f"{status.phase}: {'; '.join(waiting)}"
    if status.phase == "Running":
        unready = [each.name for each in status.container_statuses if not each.ready]
        return f"Running, not ready: container {', '.join(unready)}" if unready else "Running, not ready"
    if status.phase == "Pending" and pod.spec.node_name:
        return f"Pending on {pod.spec.node_name}"
    return status.phase


def _describe_container(container: ContainerStatus) -> str:
    waiting = container.state.waiting
    details = _sentence(waiting.reason, waiting.message) if waiting else ""
    return f"container {container.name}: {details}"


def _sentence(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, _shorten(message)) if part)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_LIMIT else f"{text[: MESSAGE_LIMIT - 1]}…"


async def wait(
    client: KubeClient,
    *,
    namespace: str,
    job: str,
    uid: str,
    workers: int,
    backoff: Backoff = Backoff(),  # noqa: B008 - frozen
) -> int:
    """Returns 0 once all workers are ready, 1 if one of them never will be. Logs each change of what it waits for.

    More than WATCHED workers are awaited in groups. One that fails after its group was ready does not end this command:
    the operator then ends the whole attempt.
    """
    wanted = [names.worker_pod(job, index) for index in range(workers)]
    for first in range(0, workers, WATCHED):
        if not await _wait_for_group(client, namespace, uid, wanted[first : first + WATCHED], backoff):
            return EXIT_FAILED
    log.info("all %d workers are ready", workers)
    return 0


async def _wait_for_group(
    client: KubeClient, namespace: str, uid: str, wanted: Sequence[str], backoff: Backoff
) -> bool:
    """Whether all of them are ready; False once one of them never will be."""
    changed = asyncio.Event()
    reflectors = [
        Reflector(
            client,
            f"/api/v1/namespaces/{namespace}/pods",
            JobPod,
            on_change=lambda *_: changed.set(),
            params={"fieldSelector": f"metadata.name={name}"},
            newest=True,  # a worker of the attempt before had the same name
            backoff=backoff,
        )
        for name in wanted
    ]
    watching = asyncio.create_task(_watch(reflectors))
    try:
        if not await _wait_for(_all_synced(reflectors), unless=watching):
            return False
        logged: Mapping[str, str] = {}
        while True:
            changed.clear()
            pods = [pod for each in reflectors for pod in each.store.values()]
            # a pod of an earlier job may have the name
            own = {pod.metadata.name: pod for pod in pods if pod.metadata.labels.get(names.JOB_UID) == uid}
            outlook = judge_workers(own, wanted)
            if outlook.failed:
                for name, why in outlook.failed.items():
                    log.error("worker %s cannot become ready: %s", name, why)
                return False
            _log_progress(logged, outlook.waits)
            if not outlook.waits:
                return True
            logged = outlook.waits
            if not await _wait_for(changed.wait(), unless=watching):
                return False
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(reflectors: Sequence[Reflector[JobPod]]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in reflectors:
            group.create_task(each.run())


async def _all_synced(reflectors: Sequence[Reflector[JobPod]]) -> None:
    for each in reflectors:
        await each.wait_synced()


async def _wait_for(awaited: Coroutine[object, object, object], *, unless: "asyncio.Task[None]") -> bool:
    """Whether ``awaited`` completed; False if ``unless`` ended first. That only happens on an internal error, which is
    raised here."""
    waiting = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({waiting, unless}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if unless.done():
        unless.result()
    return not unless.done()


def _log_progress(logged: Mapping[str, str], waits: Mapping[str, str]) -> None:
    for name, why in waits.items():
        if logged.get(name) != why:
            log.info("waiting for %s: %s", name, why)
    for name in logged:
        if name not in waits:
            log.info("%s is ready", name)


def bring_kubectl(folder: Path, search_path: str | None = None) -> Path:
    """Copy kubectl from ``search_path`` (default: ``$PATH``) into ``folder``, atomically.

    Raises OSError.
    """
    found = shutil.which("kubectl", path=search_path)
    if found is None:
        raise FileNotFoundError("kubectl is not on $PATH: the launcher image must contain it")
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / ".kubectl"
    shutil.copyfile(found, draft)
    draft.chmod(0o755)  # the launcher may run as another user
    return draft.replace(folder / "kubectl")


def _label_value(text: str) -> str:
    if not _LABEL_VALUE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected 1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        )
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 1")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", required=True, type=_label_value, metavar="NS", help="namespace of the job (required)"
    )
    parser.add_argument("--job", required=True, type=_label_value, metavar="NAME", help="name of the job (required)")
    parser.add_argument("--uid", required=True, type=_label_value, metavar="UID", help="uid of the job (required)")
    parser.add_argument("--workers", required=True, type=_count, metavar="N", help="number of workers (required)")
    parser.add_argument(
        "--kubectl-to", required=True, type=Path, metavar="DIR", help="directory to copy kubectl to (required)"
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: in-cluster config, $KUBECONFIG, ~/.kube/config"
    )
    add_log_arguments(parser)
    parser.set_defaults(log_format="text", log_level="info")


def main(arguments: argparse.Namespace) -> int:
    """Exit code 0: all workers are ready; 1: a worker has failed permanently, or the launcher cannot be prepared."""
    configure_logging(arguments.log_format, arguments.log_level)
    try:
        placed = bring_kubectl(arguments.kubectl_to)
    except OSError as error:
        print_error(f"cannot copy kubectl to {arguments.kubectl_to}: {error}")
        return EXIT_FAILED
    log.info("kubectl is at %s", placed)
    try:
        return asyncio.run(_run(arguments))
    except ConfigError as error:
        print_error(error)
        return EXIT_FAILED


async def _run(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.kubeconfig)
    async with KubeClient(
        config, user_agent="muster-wait-workers", timeout_s=TIMEOUT_S, max_connections=WATCHED
    ) as client:
        waiting = asyncio.create_task(
            wait(
                client,
                namespace=arguments.namespace,
                job=arguments.job,
                uid=arguments.uid,
                workers=arguments.workers,
            )
        )
        # without a handler the kernel ignores SIGTERM for the first process of a container, which would then use the
        # whole grace period
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, waiting.cancel)
        try:
            return await waiting
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # Ctrl-C, which cancels this task and not ``waiting``
            log.info("terminated by a signal")
            return EXIT_TERMINATED
