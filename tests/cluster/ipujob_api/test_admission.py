"""The operator's webhooks, asked by a real API server (behaviours 2, 4, 5 and 7 to 15)."""

import base64
import copy
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from tests.cluster.ipujob_api.ipujob_webhooks import (  # noqa: F401 - some are fixtures
    CONFIGURATIONS,
    NAME,
    NOBODY,
    SAMPLES,
    Kubectl,
    Served,
    configured,
    free_url,
    job,
    kubectl,
    refused,
    running,
    until,
    webhooks,
)

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Invalid, NotFound
from muster_kube.webhook.key_pairs import make_key_pair
from muster_operator.admission.configurations import MUTATE_PATH, VALIDATE_PATH
from muster_operator.admission.server import WebhookEndpoint
from muster_operator.admission.validation import SpecLimits
from muster_operator.job.types import FINALIZER, jobs_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE

Object = dict[str, Any]
Rows = list[tuple[Object, str]]
FILES = sorted(SAMPLES.glob("ipujob_*.yaml"))
OF_THE_FILES = (
    "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs/ipujob-sample",
    "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs/interactive-sample-job",
    "/apis/graphcore.ai/v1alpha1/namespaces/default/ipujobs/job-inference-1",
    "/api/v1/namespaces/default/persistentvolumeclaims/sets",
    "/api/v1/persistentvolumes/training-sets",
)


def alpha5(replicas: str | None, ipus: str | None) -> Object:
    factors = {"modelReplicas": replicas, "ipusPerModelReplica": ipus}
    return job("alpha", jobInstances=None, ipusPerJobInstance=None, **factors)


def restarted(kind: str, codes: str | None = None) -> Object:
    return job("restarts", restartPolicy={"type": kind} | ({} if codes is None else {"exitCodes": codes}))


async def check(served: Served, namespace: str, rows: Rows) -> None:
    """Each job is refused with these words; without words it is taken."""
    for body, said in rows:
        found = await refused(served.api, namespace, body)
        assert (said in found) if said else found == "", f"{body}: expected {said!r}, found {found!r}"


async def test_2_what_is_not_said_is_filled_in(webhooks: Served, namespace: str) -> None:  # noqa: F811 - the fixture
    """Behaviour 2."""
    made = await webhooks.api.create(jobs_path(namespace), job("least"))
    spec = made["spec"]
    assert spec["cleanPodPolicy"] == "None"
    assert spec["restartPolicy"] == {"type": "Never", "backOffLimit": 3}
    assert (spec["workers"]["replicas"], spec["workersPerJobInstance"]) == (1, "1")
    assert made["status"]["launcherStatus"] == "Pending"


async def test_4_the_older_spelling_fills_in_the_newer_with_a_warning(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
    kubectl: Kubectl,  # noqa: F811 - the fixture
) -> None:
    """Behaviour 4."""
    body = job("older", workerPerJobInstance="2")
    said = await kubectl.fine("create", "-f", "-", namespace=namespace, stdin=json.dumps(body))
    assert "Warning: spec.workerPerJobInstance " in said.err
    spec = (await webhooks.api.get(f"{jobs_path(namespace)}/older"))["spec"]
    assert (spec["workersPerJobInstance"], spec["workers"]["replicas"]) == ("2", 2)
    both = job("both", workerPerJobInstance="2", workersPerJobInstance="1")
    replicas = job("replicas", workersPerJobInstance="2")
    replicas["spec"]["workers"]["replicas"] = 1
    older = job("older", workerPerJobInstance="2")
    older["spec"]["workers"]["replicas"] = 1
    rows: Rows = [
        (older, 'spec.workerPerJobInstance: "2"'),
        (job("word", workerPerJobInstance="two"), 'spec.workerPerJobInstance: "two": expected a number'),
        (both, 'spec.workerPerJobInstance: "2"'),
        (replicas, 'spec.workersPerJobInstance: "2"'),
    ]
    await check(webhooks, namespace, rows)


async def test_5_the_alpha_5_form_is_translated_with_a_warning(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
    kubectl: Kubectl,  # noqa: F811 - the fixture
) -> None:
    """Behaviour 5."""
    said = await kubectl.fine("create", "-f", "-", namespace=namespace, stdin=json.dumps(alpha5("4", "2")))
    assert "Warning: " in said.err
    assert [fact for fact in ("spec.ipusPerJobInstance", '"8"') if fact not in said.err] == []
    spec = (await webhooks.api.get(f"{jobs_path(namespace)}/alpha"))["spec"]
    assert (spec["jobInstances"], spec["ipusPerJobInstance"]) == (1, "8")
    rows: Rows = [
        (alpha5("3", "1"), 'spec.ipusPerJobInstance: "3"'),
        (alpha5("64", "2"), 'spec.ipusPerJobInstance: "128"'),
        (alpha5("four", "1"), 'spec.modelReplicas: "four"'),
        (alpha5("4", None), "spec.ipusPerModelReplica: missing"),
    ]
    await check(webhooks, namespace, rows)


async def test_7_a_size_that_no_partition_has_is_denied(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 7."""
    sizes = ("3", "0", "-2", "1.5", "abc", "", "08", " 8", "8\n", "٨", "1" + "0" * 5000)
    rows: Rows = [(job("size", ipusPerJobInstance=size), "spec.ipusPerJobInstance: ") for size in sizes]
    await check(webhooks, namespace, [*rows, (job("size", ipusPerJobInstance="64"), "")])


async def test_8_the_largest_partition_is_a_setting(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Behaviour 8."""
    large, larger = (job("large", ipusPerJobInstance=size) for size in ("128", "256"))
    await check(webhooks, namespace, [(large, '"128": expected a power of two from "1" to "64"')])
    place = WebhookEndpoint(NAMESPACE, host="127.0.0.1", port=0, name=NAME, limits=SpecLimits(max_ipus=128))
    async with running(place, webhooks.plane, CollectorRegistry()):
        await until(lambda: webhooks.pointed(capsys), "it listens")

        async def taken() -> bool:
            return await refused(webhooks.api, namespace, large) == ""

        await until(taken, "the other one is asked")
        await check(webhooks, namespace, [(larger, '"256": expected a power of two from "1" to "128"')])


async def test_9_ipus_that_workers_cannot_share_equally_are_denied(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 9."""
    rows: Rows = [
        (job("share", ipusPerJobInstance="4", workersPerJobInstance="8"), "expected a divisor of spec.ipusPerJobInst"),
        (job("share", ipusPerJobInstance="4", workersPerJobInstance="3"), 'spec.workersPerJobInstance: "3"'),
        (job("share", ipusPerJobInstance="4", workersPerJobInstance="4"), ""),
    ]
    await check(webhooks, namespace, rows)


async def test_10_a_name_that_would_make_no_host_is_denied(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 10: -worker-0 has 9 characters, -worker-10 has 10, -launcher 9."""
    launcher = {"command": ["mpirun"]}
    rows: Rows = [
        (job("1-foo"), 'metadata.name: "1-foo"'),
        (job("foo.bar"), "metadata.name"),
        (job("f" * 54), ""),
        (job("f" * 55), "at most 54 characters: with -worker-0"),
        (job("f" * 63), "metadata.name"),
        (job("f" * 54, jobInstances=10), ""),
        (job("f" * 54, jobInstances=11), "at most 53 characters: with -worker-10"),
        (job("f" * 54, jobInstances=3, ipusPerJobInstance="4", workersPerJobInstance="4"), "with -worker-11"),
        (job("f" * 54, launcher=launcher), ""),
        (job("f" * 55, launcher=launcher), "metadata.name"),
        (job("f" * 54, jobInstances=0), ""),
    ]
    await check(webhooks, namespace, rows)
    generated = job("")
    generated["metadata"] = {"generateName": "f" * 49}
    made = await webhooks.api.create(jobs_path(namespace), generated)
    assert made["metadata"]["name"].startswith("f" * 49)
    generated["metadata"] = {"generateName": "f" * 50}
    await check(webhooks, namespace, [(generated, "at most 54 characters")])


async def test_11_exit_codes_are_codes_and_ranges_of_them(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 11."""
    bad = ("a", "9-", "300", "200-100", "", ",", "1,,2", "0", "1-2-3", "1,256", "9" * 5000)
    path = "spec.restartPolicy.exitCodes"
    rows: Rows = [(restarted("ExitCode", codes), path) for codes in bad]
    await check(webhooks, namespace, [*rows, (restarted("ExitCode", "1,3,128-255"), "")])
    made = await webhooks.api.create(jobs_path(namespace), restarted("ExitCode"))
    assert made["spec"]["restartPolicy"] == {"type": "ExitCode", "exitCodes": "128-255", "backOffLimit": 3}


async def test_12_a_session_has_a_time_to_live_and_starts_nothing(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 12."""
    rows: Rows = [
        (job("session", interactive={"ttl": 0}), "spec.interactive.ttl"),
        (job("session", interactive={"ttl": -1}), "spec.interactive.ttl"),
        (
            job("session", interactive={"ttl": 60}, launcher={"command": ["mpirun"]}),
            "spec.interactive: expected either",
        ),
        (job("session", interactive={"ttl": 60}), ""),
    ]
    await check(webhooks, namespace, rows)


async def test_13_what_partitions_and_pods_were_made_to_changes_only_while_suspended(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 13."""
    path = f"{jobs_path(namespace)}/fixed"
    launcher = {"command": ["mpirun", "a"]}
    await webhooks.api.create(jobs_path(namespace), job("fixed", ipusPerJobInstance="4", launcher=launcher))
    changes: list[tuple[Object, str]] = [
        ({"ipusPerJobInstance": "8"}, "spec.ipusPerJobInstance"),
        ({"workersPerJobInstance": "2"}, "spec.workersPerJobInstance"),
        ({"workers": {"replicas": 2}}, "spec.workersPerJobInstance"),
        ({"launcher": {"command": ["mpirun", "b"]}}, "spec.launcher"),
        ({"launcher": None}, "spec.launcher"),
        ({"launcher": None, "interactive": {"ttl": 60}}, "spec.interactive"),
    ]
    for change, field in changes:
        with pytest.raises(Invalid) as denied:
            await webhooks.api.patch(path, {"spec": change | {"suspend": True}})
        assert f"{field}: " in denied.value.message
    allowed: Object = {"jobInstances": 2, "restartPolicy": {"type": "OnFailure"}}
    spec = (await webhooks.api.patch(path, {"spec": allowed}))["spec"]
    assert (spec["jobInstances"], spec["restartPolicy"]["type"]) == (2, "OnFailure")
    await webhooks.api.patch(path, {"spec": {"suspend": True}})
    spec = (await webhooks.api.patch(path, {"spec": changes[-1][0] | {"workers": {"replicas": 2}}}))["spec"]
    assert (spec["interactive"], spec["workersPerJobInstance"]) == ({"ttl": 60}, "2")
    await webhooks.api.patch(path, {"spec": {"suspend": False}})


def review(body: Object, version: str) -> Object:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "resource": {"group": "graphcore.ai", "version": "v1alpha1", "resource": "ipujobs"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "ann", "groups": ["system:masters"]},
        "object": body,
        "oldObject": None,
    }
    return {"kind": "AdmissionReview", "apiVersion": f"admission.k8s.io/{version}", "request": request}


def patched(body: Object, patch: str) -> Object:
    made = copy.deepcopy(body)
    for operation in json.loads(base64.b64decode(patch)):
        *way, last = operation["path"].split("/")[1:]
        at = made
        for key in way:
            at = at[key]
        if operation["op"] == "remove":
            del at[last]
        else:
            at[last] = operation["value"]
    return made


async def test_14_reviews_are_answered_in_their_version_and_junk_is_told_so(
    webhooks: Served,  # noqa: F811 - the fixture
) -> None:
    """Behaviour 14: as anybody in the network can ask."""
    configuration = (await webhooks.api.get(CONFIGURATIONS[0]))["webhooks"][0]["clientConfig"]
    trust = ssl.create_default_context(cadata=base64.b64decode(configuration["caBundle"]).decode())
    url = configuration["url"].removesuffix(MUTATE_PATH)
    async with httpx2.AsyncClient(base_url=url, verify=trust, trust_env=False, timeout=60) as http:
        for version in ("v1", "v1beta1"):
            body = alpha5("4", "1")
            asked = review(body, version)
            first = (await http.post(MUTATE_PATH, json=asked)).json()
            assert first["apiVersion"] == f"admission.k8s.io/{version}"
            assert first["response"]["uid"] == asked["request"]["uid"]
            assert (first["response"]["allowed"], first["response"]["patchType"]) == (True, "JSONPatch")
            second = review(patched(body, first["response"]["patch"]), version)
            again = (await http.post(MUTATE_PATH, json=second)).json()
            assert again["response"] == {"uid": asked["request"]["uid"], "allowed": True}
            judged = (await http.post(VALIDATE_PATH, json=second)).json()
            assert (judged["apiVersion"], judged["response"]["allowed"]) == (first["apiVersion"], True)
            second["request"]["userInfo"] = {"username": "bob"}

            async def code(second: Object = second) -> int:
                judged = (await http.post(VALIDATE_PATH, json=second)).json()
                found: int = judged["response"]["status"]["code"]
                return 0 if found == 503 else found  # his rights could not be asked for in time

            answered = await until(code, "bob's rights are known")
            assert answered == 403, "bob may not create pods"
        strange = review({}, "v1")
        strange["request"]["resource"]["resource"] = "pods"
        for path in (MUTATE_PATH, VALIDATE_PATH):
            for junk in (b"", b"<h1>", b"[]", b"\xff", json.dumps(strange).encode(), b"[" * 100_000):
                answer = await http.post(path, content=junk)
                assert answer.status_code == 400, (path, junk[:20], answer.text)
            assert (await http.post(path, json=review(["no", "job"], "v1"))).status_code == 400  # type: ignore[arg-type]


async def test_14_a_server_that_speaks_the_older_version_is_answered_in_it(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 14: as the API server itself asks, dry runs too."""
    for path in CONFIGURATIONS:
        found = await webhooks.api.get(path)
        older = [{"name": each["name"], "admissionReviewVersions": ["v1beta1"]} for each in found["webhooks"]]
        await webhooks.api.patch(path, {"webhooks": older}, kind="strategic")
    await check(webhooks, namespace, [(job("bad", ipusPerJobInstance="3"), "spec.ipusPerJobInstance")])
    made = await webhooks.api.create(jobs_path(namespace), alpha5("4", "1"))
    assert (made["spec"]["ipusPerJobInstance"], made["spec"]["cleanPodPolicy"]) == ("4", "None")


async def test_15_without_the_webhooks_nothing_is_created_and_everything_else_goes_on(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    """Behaviour 15."""
    path = f"{jobs_path(namespace)}/kept"
    kept = job("kept")
    kept["metadata"]["finalizers"] = [FINALIZER]
    await webhooks.api.create(jobs_path(namespace), kept)
    await webhooks.point(NOBODY)

    async def fails() -> bool:
        return "failed calling webhook" in await refused(webhooks.api, namespace, job("new"))

    await until(fails, "nothing is created")
    await webhooks.api.patch(f"{path}/status", {"status": {"lastMessage": "still written"}})
    labelled = await webhooks.api.patch(path, {"metadata": {"labels": {"a": "b"}}, "spec": {"jobInstances": 2}})
    assert (labelled["metadata"]["labels"], labelled["spec"]["jobInstances"]) == ({"a": "b"}, 2)
    await webhooks.api.delete(path)
    assert (await webhooks.api.get(path))["metadata"]["deletionTimestamp"]
    await webhooks.api.patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await webhooks.api.get(path)


async def test_15_a_job_that_is_being_deleted_is_refused_nothing(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
) -> None:
    path = f"{jobs_path(namespace)}/going"
    going = job("going")
    going["metadata"]["finalizers"] = [FINALIZER, "example.com/other"]
    await webhooks.api.create(jobs_path(namespace), going)
    with pytest.raises(Invalid):
        await webhooks.api.patch(path, {"spec": {"ipusPerJobInstance": "3"}})
    await webhooks.api.delete(path)
    await webhooks.api.patch(path, {"spec": {"ipusPerJobInstance": "3"}, "metadata": {"finalizers": [FINALIZER]}})
    await webhooks.api.patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await webhooks.api.get(path)


async def test_all_that_is_wrong_is_said_at_once(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
    kubectl: Kubectl,  # noqa: F811 - the fixture
) -> None:
    container = {
        "name": "Main",
        "volumeMounts": [{"name": "data", "mountPath": "/mnt"}],
        "env": [{"name": "A", "value": 1}],
    }
    body = job("1-foo", ipusPerJobInstance="3", workers={"template": {"spec": {"containers": [container]}}})
    said = await kubectl("create", "-f", "-", namespace=namespace, stdin=json.dumps(body))
    assert said.code != 0
    at = "spec.workers.template.spec.containers[0]"
    paths = ("metadata.name", "spec.ipusPerJobInstance", f"{at}.name", f"{at}.image", f"{at}.volumeMounts[0].name")
    for path in (*paths, f"{at}.env[0].value"):
        assert f"* {path}: " in said.err
    none = job("none", workers={"template": {"spec": {"containers": []}}})
    many = job("many")
    containers = [{"name": f"c{number}", "image": "main:1"} for number in range(40)]
    many["spec"]["workers"]["template"]["spec"]["containers"] = containers
    await check(webhooks, namespace, [(none, "spec.workers.template.spec.containers: missing"), (many, "")])


@pytest.fixture
async def tidied(api: KubeClient) -> AsyncIterator[None]:
    yield
    for path in OF_THE_FILES:
        await gone(api, path)


async def gone(api: KubeClient, path: str) -> None:
    with suppress(NotFound):
        await api.delete(path)

    async def missing() -> bool:
        try:
            await api.get(path)
        except NotFound:
            return True
        return False

    await until(missing, f"{path} is gone")


async def test_every_published_file_applies_unchanged_and_again_changes_nothing(
    webhooks: Served,  # noqa: F811 - the fixture
    kubectl: Kubectl,  # noqa: F811 - the fixture
    tidied: None,
) -> None:
    """With kubectl's own validation on, as it is by default."""
    assert len(FILES) == 7
    for file in FILES:
        first = await kubectl.fine("apply", "-f", str(file))
        (applied,) = [line.split()[0] for line in first.out.splitlines() if line.startswith("ipujob.")]
        path = f"{jobs_path('default')}/{applied.partition('/')[2]}"
        before = await webhooks.api.get(path)
        again = await kubectl.fine("apply", "-f", str(file))
        after = await webhooks.api.get(path)
        assert after == before, file.name
        assert f"{applied} unchanged" in again.out
        await gone(webhooks.api, path)


async def test_server_side_apply_of_a_sample_again_changes_nothing(
    webhooks: Served,  # noqa: F811 - the fixture
    kubectl: Kubectl,  # noqa: F811 - the fixture
    tidied: None,
) -> None:
    """As GitOps controllers do it."""
    for name in ("ipujob_training_single_gcd.yaml", "ipujob_alpha5_training.yaml"):
        await kubectl.fine("apply", "--server-side", "-f", str(SAMPLES / name))
        path = f"{jobs_path('default')}/ipujob-sample"
        before = await webhooks.api.get(path)
        await kubectl.fine("apply", "--server-side", "-f", str(SAMPLES / name))
        after = await webhooks.api.get(path)
        assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], 1)
        await gone(webhooks.api, path)


async def test_jobs_outside_the_scope_are_not_judged(
    webhooks: Served,  # noqa: F811 - the fixture
    namespace: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = job("bad", ipusPerJobInstance="3")
    await check(webhooks, namespace, [(bad, "admission webhook")])
    place = WebhookEndpoint(NAMESPACE, host="127.0.0.1", port=0, name=NAME, scope=("default",))
    async with running(place, webhooks.plane, CollectorRegistry()):
        await until(lambda: webhooks.pointed(capsys), "it listens")

        async def taken() -> bool:
            return await refused(webhooks.api, namespace, bad) == ""

        await until(taken, "the other one is asked")
        await check(webhooks, "default", [(bad, "spec.ipusPerJobInstance")])


def put(folder: Path) -> tuple[bytes, bytes]:
    """A new pair of files, as cert-manager's Secret is mounted; its authority and its certificate, PEM."""
    pair = make_key_pair(["127.0.0.1"], time.time())
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return pair.authority, pair.certificate


async def test_certificates_of_somebody_else_are_served_and_read_again(
    control_plane: ControlPlane,
    api: KubeClient,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    authority, _ = put(tmp_path)
    served = Served(api, control_plane)
    place = WebhookEndpoint(NAMESPACE, host="127.0.0.1", port=0, name=NAME, cert_dir=tmp_path)
    async with configured(api, namespace), running(place, control_plane, CollectorRegistry()):
        await until(lambda: served.pointed(capsys), "it listens")
        for path in CONFIGURATIONS:
            found = await api.get(path)
            bundle = {"caBundle": base64.b64encode(authority).decode()}
            trusting = [{"name": each["name"], "clientConfig": bundle} for each in found["webhooks"]]
            await api.patch(path, {"webhooks": trusting}, kind="strategic")
        await until(lambda: served.answers(namespace), "the webhooks are in force")
        with pytest.raises(ApiError):
            await api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}")
