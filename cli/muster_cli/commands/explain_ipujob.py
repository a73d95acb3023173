"""`muster explain ipujob [NAMESPACE/]NAME`, and the IPUJobs of a node for `muster explain NODE`."""

import argparse
import sys
import time
from typing import TypeVar

from muster_cli.report.job import JobFacts, format_history, job_history, list_jobs_on_node
from muster_cli.report.output_format import TABLE, print_document
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.api.objects import Event, Pod
from muster_kube.nodehealth import PATH, NodeHealth
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_operator.job.names import JOB
from muster_operator.job.types import API_VERSION, PLURAL, IPUJob, jobs_path

KIND = "ipujob"
LIST_S = 10.0
_NODES_LIMIT = 64  # nodes of one job whose health is read

T = TypeVar("T")


def job_name(text: str) -> str:
    """For argparse: ``NAMESPACE/NAME`` or ``NAME``."""
    parts = text.split("/")
    if len(parts) > 2 or not all(part and part.replace("-", "").replace(".", "").isalnum() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected [NAMESPACE/]NAME of an IPUJob")
    return text


async def explain_job(client: KubeClient, config: ClusterConfig, given: str, output: str) -> int:
    """Returns the exit code: 2 if the job has failed, 1 if it restarts or its hardware is degraded, otherwise 0."""
    from muster_cli.report.paragraphs import fold_lines

    namespace, name = given.split("/") if "/" in given else (config.namespace, given)
    try:
        job = await client.get(f"{jobs_path(namespace)}/{name}", type=IPUJob)
    except NotFound:
        print(
            f"muster: namespace {namespace} has no IPUJob {name}: kubectl get ipujobs --all-namespaces lists all",
            file=sys.stderr,
        )
        return EXIT_UNKNOWN
    history = job_history(await _read_job(client, job), time.time())
    if output != TABLE:
        print_document(history, output)
    else:
        print("\n".join(fold_lines(format_history(history))))
    return history.code


async def _read_job(client: KubeClient, job: IPUJob) -> JobFacts:
    """Users without the right to read a part of it still get the rest."""
    namespace, blind = job.metadata.namespace, list[str]()
    chosen = f"involvedObject.kind=IPUJob,involvedObject.name={job.metadata.name}"
    events = await _list_all(client, f"/api/v1/namespaces/{namespace}/events", Event, {"fieldSelector": chosen}, blind)
    events = [each for each in events if each.involved_object.uid in ("", job.metadata.uid)]
    chosen = f"{JOB}={job.metadata.name}"
    pods = await _list_all(client, f"/api/v1/namespaces/{namespace}/pods", Pod, {"labelSelector": chosen}, blind)
    healths: dict[str, NodeHealth] = {}
    for node in sorted({pod.spec.node_name for pod in pods if pod.spec.node_name})[:_NODES_LIMIT]:
        try:
            healths[node] = await client.get(f"{PATH}/{node}", type=NodeHealth)
        except NotFound:
            continue
        except ApiError as error:
            blind.append(f"cannot read the health of its nodes: {error}")
            break
    return JobFacts(job, events, pods, healths, tuple(blind))


async def read_jobs_of_node(client: KubeClient, node: str) -> list[str]:
    """Lines for `muster explain NODE`; none if the cluster has no IPUJobs."""
    blind: list[str] = []
    jobs = await _list_all(client, f"/apis/{API_VERSION}/{PLURAL}", IPUJob, {}, blind)
    if not jobs and not blind:
        return []
    pods = await _list_all(
        client, "/api/v1/pods", Pod, {"labelSelector": JOB, "fieldSelector": f"spec.nodeName={node}"}, blind
    )
    return [*list_jobs_on_node(node, jobs, pods), *blind]


async def _list_all(client: KubeClient, path: str, kind: type[T], params: dict[str, str], blind: list[str]) -> list[T]:
    items: list[T] = []
    try:
        async for page in client.list_pages(path, kind, params=params, timeout_s=LIST_S):
            items += page.items
    except NotFound:
        return []
    except ApiError as error:
        blind.append(f"could not be read: {error}")
    return items
