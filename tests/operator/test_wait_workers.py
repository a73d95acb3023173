"""`muster wait-workers`: what it waits for, what it says of that, and what it lives through. The API is scripted."""

import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Drop, FakeApi, Reply, Stream, Wire

from muster_cli.__main__ import main
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.controller.backoff import Backoff
from muster_operator.job.snapshot import JobPod
from muster_operator.wait_workers import MESSAGE_LIMIT, WATCHED, bring_kubectl, judge_workers, wait

PODS = "/api/v1/namespaces/team/pods"
SCHEDULED = {"type": "PodScheduled", "status": "True"}
READY = {"type": "Ready", "status": "True"}
Object = dict[str, Any]


def pod(name: str, phase: str = "Pending", version: int = 1, deleted: bool = False, **status: Any) -> Object:
    meta: Object = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    meta["labels"] = {"muster.dev/ipujob-uid": "u-1"}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": meta, "spec": {"nodeName": "node-1"}, "status": {"phase": phase, **status}}


def ready(name: str, version: int = 1) -> Object:
    return pod(name, "Running", version, conditions=[SCHEDULED, READY])


def waiting(container: str, reason: str, message: str = "") -> Object:
    return {"name": container, "ready": False, "state": {"waiting": {"reason": reason, "message": message}}}


def terminated(container: str, **end: Any) -> Object:
    return {"name": container, "ready": False, "state": {"terminated": end}}


def seen(*bodies: Object) -> dict[str, JobPod]:
    return {each["metadata"]["name"]: msgspec.convert(each, JobPod) for each in bodies}


# --- what is waited for, and why


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (pod("w"), ["Pending", "node-1"]),
        (
            pod(
                "w",
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes\n are"}
                ],
            ),
            ["Pending", "Unschedulable", "0/3 nodes are"],
        ),
        (
            pod("w", containerStatuses=[waiting("main", "ImagePullBackOff", 'Back-off pulling image "x"')]),
            ["Pending", "main", "ImagePullBackOff", 'Back-off pulling image "x"'],
        ),
        (
            pod(
                "w",
                initContainerStatuses=[waiting("init", "CrashLoopBackOff")],
                containerStatuses=[waiting("main", "PodInitializing")],
            ),
            ["Pending", "init", "CrashLoopBackOff"],
        ),
        (
            pod("w", "Running", containerStatuses=[{"name": "good", "ready": True}, {"name": "bad", "ready": False}]),
            ["Running", "bad"],
        ),
        (pod("w", "Running"), ["Running"]),
        (pod("w", "Failed", deleted=True), []),
        (pod("w", "Running", deleted=True, conditions=[READY]), []),
        (pod("w", "Unknown"), ["Unknown"]),
        (pod("other"), []),
    ],
)
def test_a_worker_that_is_not_ready_has_a_reason(body: Object, facts: list[str]) -> None:
    outlook = judge_workers(seen(body), ["w"])
    assert list(outlook.waits) == ["w"]
    assert outlook.failed == {}
    assert outlook.waits["w"]
    assert [fact for fact in facts if fact not in outlook.waits["w"]] == []
    # what waits only for another container is no reason, nor is a container that is ready
    assert "PodInitializing" not in outlook.waits["w"]
    assert "good" not in outlook.waits["w"]


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (pod("w", "Failed", reason="Evicted", message="low on memory"), ["Evicted", "low on memory"]),
        (
            pod("w", "Failed", containerStatuses=[terminated("main", exitCode=137, reason="OOMKilled")]),
            ["main", "OOMKilled", "137"],
        ),
        (
            pod("w", "Failed", initContainerStatuses=[terminated("init", exitCode=0, signal=9, message="no disk")]),
            ["init", "signal 9", "no disk"],
        ),
        (pod("w", "Failed"), []),
        (pod("w", "Succeeded"), ["code 0"]),
    ],
)
def test_a_worker_that_has_ended_will_never_be_ready(body: Object, facts: list[str]) -> None:
    failed = judge_workers(seen(body, ready("v")), ["v", "w"]).failed
    assert list(failed) == ["w"]
    assert failed["w"]
    assert [fact for fact in facts if fact not in failed["w"]] == []


def test_ready_workers_are_not_waited_for_and_pods_of_others_do_not_count() -> None:
    outlook = judge_workers(seen(ready("w"), pod("stranger", "Failed")), ["w"])
    assert (outlook.waits, outlook.failed) == ({}, {})


def test_a_long_message_is_cut() -> None:
    body = pod("w", containerStatuses=[waiting("main", "CreateContainerError", "x" * 5000)])
    assert len(judge_workers(seen(body), ["w"]).waits["w"]) < MESSAGE_LIMIT + 60


# --- over time


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="muster_operator")
    return caplog


async def waited(fake: FakeApi, workers: int) -> int:
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{fake.port}")
    async with KubeClient(config, timeout_s=20.0) as client:
        return await wait(
            client, namespace="team", job="job", uid="u-1", workers=workers, backoff=Backoff(0.001, 0.001)
        )


def listing(*items: Object, version: int = 10) -> Reply:
    return Reply(200, Wire.listing(version, *items))


def changed(body: Object) -> bytes:
    return Wire.event("MODIFIED", body)


def said(logged: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in logged.records if record.name == "muster_operator.wait_workers"]


async def test_it_tells_each_change_of_what_it_waits_for_once(fake: FakeApi, logged: pytest.LogCaptureFixture) -> None:
    pulling = pod("job-worker-0", version=11, containerStatuses=[waiting("main", "ContainerCreating")])
    again = pod("job-worker-0", version=12, containerStatuses=[waiting("main", "ContainerCreating")])
    fake.on("GET", PODS, listing())
    # a watch for each: what comes together is looked at once
    bodies = (pulling, again, ready("job-worker-0", 13))
    fake.on("WATCH", PODS, *(Stream((changed(body),), then="end") for body in bodies), Stream())
    assert await waited(fake, 1) == 0
    missing, creating, ready_now, all_ready = said(logged)
    assert "job-worker-0" in missing
    assert "ContainerCreating" not in missing
    assert [word for word in ("job-worker-0", "Pending", "main", "ContainerCreating") if word not in creating] == []
    assert "job-worker-0" in ready_now
    assert "Pending" not in ready_now
    assert "1" in all_ready


async def test_it_asks_for_each_worker_by_name(fake: FakeApi) -> None:
    """As the Role of a launcher allows."""
    workers = [ready(f"job-worker-{index}") for index in range(WATCHED + 2)]
    fake.on("GET", PODS, listing(*workers))
    fake.on("WATCH", PODS, Stream())
    assert await waited(fake, len(workers)) == 0
    assert {asked.query.get("labelSelector") for asked in fake.asked} == {None}
    lists = [asked.query for asked in fake.asked if asked.method == "GET" and "watch" not in asked.query]
    names = [query["fieldSelector"] for query in lists]
    assert sorted(names) == sorted(f"metadata.name={each['metadata']['name']}" for each in workers)
    # a cache may still have the workers of the attempt before, which had the same names
    assert not any("resourceVersion" in query for query in lists)


async def test_a_pod_of_an_earlier_job_of_that_name_is_no_worker(
    fake: FakeApi, logged: pytest.LogCaptureFixture
) -> None:
    earlier = ready("job-worker-0")
    earlier["metadata"]["labels"] = {"muster.dev/ipujob-uid": "u-0"}
    fake.on("GET", PODS, listing(earlier))
    fake.on("WATCH", PODS, Stream((changed(ready("job-worker-0", 11)),)))
    assert await waited(fake, 1) == 0
    assert "job-worker-0: not created yet" in said(logged)[0]


async def test_a_worker_that_fails_while_it_waits_ends_it(fake: FakeApi, logged: pytest.LogCaptureFixture) -> None:
    failed = pod("job-worker-0", "Failed", 11, containerStatuses=[terminated("main", exitCode=3, reason="Error")])
    fake.on("GET", PODS, listing())
    fake.on("WATCH", PODS, Stream((changed(failed),)))
    assert await waited(fake, 1) == 1
    last = said(logged)[-1]
    assert [word for word in ("job-worker-0", "main", "Error", "code 3") if word not in last] == []


GONE = Wire.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
FORBIDDEN = Reply(403, {"kind": "Status", "reason": "Forbidden", "message": "RBAC says no"})


@pytest.mark.parametrize(
    ("lists", "watches"),
    [
        ([listing(), listing(ready("job-worker-0"), version=20)], [Stream((GONE,))]),
        ([FORBIDDEN, FORBIDDEN, listing(ready("job-worker-0"))], [Stream()]),
        ([Reply(500, b"<html>down</html>"), listing(ready("job-worker-0"))], [Stream()]),
        ([Drop(), Drop(), Drop(), Drop(), listing(ready("job-worker-0"))], [Stream()]),
        ([listing()], [Stream(then="cut"), Drop(), Stream((changed(ready("job-worker-0", 11)),))]),
        ([listing()], [FORBIDDEN, Stream((changed(ready("job-worker-0", 11)),))]),
    ],
    ids=["410", "403", "500", "no answer", "a watch that is cut", "a watch that is refused"],
)
async def test_it_lives_through(fake: FakeApi, lists: list[Any], watches: list[Any]) -> None:
    fake.on("GET", PODS, *lists)
    fake.on("WATCH", PODS, *watches)
    assert await waited(fake, 1) == 0


# --- kubectl


def played_kubectl(folder: Path, text: str = "#!/bin/sh\necho played\n") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "kubectl").write_text(text)
    (folder / "kubectl").chmod(0o700)
    return str(folder)


def test_kubectl_is_copied_for_any_user_and_over_an_earlier_one(tmp_path: Path) -> None:
    place = tmp_path / "made/too"
    bring_kubectl(place, played_kubectl(tmp_path / "bin", "#!/bin/sh\necho old\n"))
    brought = bring_kubectl(place, played_kubectl(tmp_path / "bin"))
    assert brought == place / "kubectl"
    assert brought.stat().st_mode & 0o777 == 0o755
    assert subprocess.run([str(brought)], capture_output=True, text=True, check=True).stdout == "played\n"
    assert list(place.iterdir()) == [brought]


def test_without_kubectl_it_ends_at_once_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["wait-workers", *ARGUMENTS, "--kubectl-to", str(tmp_path / "to")]) == 1
    message = capsys.readouterr().err
    assert [word for word in ("kubectl", "$PATH") if word not in message] == []


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", played_kubectl(tmp_path / "bin"))
    (tmp_path / "file").touch()
    assert main(["wait-workers", *ARGUMENTS, "--kubectl-to", str(tmp_path / "file/x")]) == 1
    message = capsys.readouterr().err
    assert [word for word in ("kubectl", str(tmp_path / "file/x")) if word not in message] == []


# --- the command

ARGUMENTS = ("--namespace", "team", "--job", "job", "--uid", "u-1", "--workers", "2")


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--workers", "0", "1"),
        ("--workers", "two", "1"),
        ("--workers", "-1", "1"),
        ("--job", "a,b=c", "63"),
        ("--uid", "", "63"),
        ("--namespace", "x" * 64, "63"),
    ],
)
def test_a_bad_argument_is_a_usage_error_with_flag_value_and_limit(
    flag: str, value: str, allowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ARGUMENTS, "--kubectl-to", str(tmp_path)]
    words[words.index(flag) + 1] = value
    with pytest.raises(SystemExit) as ended:
        main(["wait-workers", *words])
    assert ended.value.code == 64
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert [word for word in (flag, repr(value), allowed) if word not in complaint] == []


def test_it_loads_nothing_of_a_controllers_weight() -> None:
    script = "import sys, muster_operator.wait_workers; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint(
        {"kubernetes", "pydantic", "fastapi", "starlette", "uvicorn", "cryptography", "prometheus_client"}
    )
