"""`muster explain ipujob [NAMESPACE/]NAME`, and which IPUJobs a node has to do with: reads, and has it told."""

import argparse
import sys
import time
from typing import TypeVar

import msgspec

from muster_cli.report.job import JobFacts, format_story, list_jobs_on_node, tell_story
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
_NODES_LIMIT = 64  # of one job are asked for their health

T = TypeVar("T")


def job_name(text: str) -> str:
    """For argparse: ``NAMESPACE/NAME`` or ``NAME``."""
    parts = text.split("/")
    if len(parts) > 2 or not all(part and part.replace("-", "").replace(".", "").isalnum() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected [NAMESPACE/]NAME of an IPUJob")
    return text


async def explain_job(client: KubeClient, config: ClusterConfig, given: str, *, as_document: bool) -> int:
    """The exit code: 0, 1 for a job that restarts or whose hardware is bad, 2 for one that has failed."""
    from muster_cli.report.paragraphs import fold_lines

    namespace, name = given.split("/") if "/" in given else (config.namespace, given)
    try:
        job = await client.get(f"{jobs_path(namespace)}/{name}", type=IPUJob)
    except NotFound:
        print(f"muster: there is no IPUJob {name} in namespace {namespace}", file=sys.stderr)
        return EXIT_UNKNOWN
    told = tell_story(await _read_job(client, job), time.time())
    if as_document:
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        print("\n".join(fold_lines(format_story(told))))
    return told.code


async def _read_job(client: KubeClient, job: IPUJob) -> JobFacts:
    """Whoever may not read all of it still gets the rest told."""
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
            blind.append(f"the health of its nodes is not known: {error}")
            break
    return JobFacts(job, events, pods, healths, tuple(blind))


async def read_jobs_of_node(client: KubeClient, node: str) -> list[str]:
    """Lines for `muster explain NODE`; none where there are no IPUJobs here at all."""
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
        blind.append(f"not looked at: {error}")
    return items
