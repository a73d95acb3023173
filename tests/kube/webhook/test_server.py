"""AdmissionReviews over real HTTPS: what is answered, what is refused, and what failurePolicy is left to decide."""

import asyncio
import base64
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.plain_http import plain_http

from muster_kube.process.address import bind_socket
from muster_kube.webhook.certificate_files import CertificateFiles
from muster_kube.webhook.key_pairs import make_key_pair
from muster_kube.webhook.review import ALLOWED, AdmissionRequest, ReviewAnswer
from muster_kube.webhook.server import DEFAULT_S, HELD_LIMIT, REVIEW_LIMIT, WebhookApp, review_timeout_s, serve_webhooks

PATH = "/validate"
USER = {
    "username": "system:serviceaccount:muster:muster-agent",
    "extra": {"authentication.kubernetes.io/pod-name": ["agent-1"]},
}


def review(**request: Any) -> bytes:
    """As the API server's encoder orders it."""
    body = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "muster.dev", "version": "v1alpha1", "kind": "NodeHealth"},
            "resource": {"group": "muster.dev", "version": "v1alpha1", "resource": "nodehealths"},
            "subResource": "status",
            "requestSubResource": "status",
            "name": "node-1",
            "operation": "UPDATE",
            "userInfo": USER,
            "object": {"kind": "NodeHealth", "status": {"verdict": "PASS"}},
            "oldObject": None,
            "dryRun": False,
            "options": None,
        }
        | request,
    }
    return json.dumps(body, separators=(",", ":")).encode()


class Reviewer:
    def __init__(self) -> None:
        self.asked: list[AdmissionRequest] = []
        self.answer: ReviewAnswer | Exception | None = ALLOWED

    async def __call__(self, request: AdmissionRequest) -> ReviewAnswer:
        self.asked.append(request)
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


@dataclass
class Served:
    reviewer: Reviewer
    http: httpx2.AsyncClient
    port: int
    certificates: CertificateFiles

    async def post(self, body: bytes, query: str = "?timeout=30s") -> httpx2.Response:
        return await self.http.post(PATH + query, content=body)

    async def response(self, body: bytes, query: str = "?timeout=30s") -> dict[str, Any]:
        answer = await self.post(body, query)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert (said["apiVersion"], said["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        found: dict[str, Any] = said["response"]
        return found


def put_pair(folder: Path) -> ssl.SSLContext:
    """A certificate of the server, and who trusts it."""
    pair = make_key_pair(["127.0.0.1"], time.time())
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return ssl.create_default_context(cadata=pair.authority.decode())


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    trust = put_pair(tmp_path)
    reviewer, bound = Reviewer(), bind_socket("127.0.0.1", 0)
    port = bound.getsockname()[1]
    certificates = CertificateFiles(tmp_path)
    running = asyncio.create_task(serve_webhooks(WebhookApp({PATH: reviewer}), certificates, bound))
    url = f"https://127.0.0.1:{port}"
    async with httpx2.AsyncClient(base_url=url, verify=trust, trust_env=False, timeout=60) as http:
        async with asyncio.timeout(60):
            while not running.done():
                try:
                    await http.get("/healthz")
                    break
                except httpx2.ConnectError:  # it does not listen yet
                    await asyncio.sleep(0.01)
        yield Served(reviewer, http, port, certificates)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    bound.close()


async def test_a_review_is_put_to_the_reviewer_and_answered_by_its_uid(served: Served) -> None:
    assert await served.response(review()) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}
    (asked,) = served.reviewer.asked
    assert (asked.name, asked.operation, asked.sub_resource) == ("node-1", "UPDATE", "status")
    assert (asked.resource.group, asked.resource.resource) == ("muster.dev", "nodehealths")
    assert (asked.user_info.user, asked.user_info.pod) == (USER["username"], "agent-1")


async def test_a_refusal_says_why(served: Served) -> None:
    served.reviewer.answer = ReviewAnswer(False, message="not yours")
    status = (await served.response(review()))["status"]
    assert (status["code"], status["reason"], status["message"]) == (403, "Forbidden", "not yours")


async def test_a_review_of_the_older_version_is_answered_in_it(served: Served) -> None:
    older = review().replace(b"k8s.io/v1", b"k8s.io/v1beta1")
    said = (await served.post(older)).json()
    assert (said["apiVersion"], said["response"]["allowed"]) == ("admission.k8s.io/v1beta1", True)
    large = older.replace(b'"PASS"', b'"' + b"x" * REVIEW_LIMIT + b'"')
    said = (await served.post(large)).json()
    assert (said["apiVersion"], said["response"]["status"]["code"]) == ("admission.k8s.io/v1beta1", 413)


async def test_patch_and_warnings_go_with_the_answer(served: Served) -> None:
    operations = [{"op": "add", "path": "/spec/a", "value": 1}]
    served.reviewer.answer = ReviewAnswer(True, warnings=("older spelling",), patch=operations)
    response = await served.response(review())
    assert (response["warnings"], response["patchType"]) == (["older spelling"], "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == operations


async def test_a_refusal_carries_no_patch_but_its_details(served: Served) -> None:
    details = {"causes": [{"field": "spec.a", "message": "no"}]}
    served.reviewer.answer = ReviewAnswer(
        False, 422, "Invalid", "no", details, patch=[{"op": "remove", "path": "/spec/a"}]
    )
    response = await served.response(review())
    assert response["status"]["details"] == details
    assert "patch" not in response


async def test_the_objects_reach_the_reviewer_as_they_came(served: Served) -> None:
    await served.response(review())
    (asked,) = served.reviewer.asked
    assert json.loads(bytes(asked.object)) == {"kind": "NodeHealth", "status": {"verdict": "PASS"}}
    assert bytes(asked.old_object) == b"null"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "AdmissionReview"),
        (b"<h1>", "AdmissionReview"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "`request`"),
        (review().replace(b"k8s.io/v1", b"k8s.io/v2"), "admission.k8s.io/v1"),
    ],
    ids=["empty", "html", "no request", "another version"],
)
async def test_what_is_no_review_is_told_so(served: Served, body: bytes, said: str) -> None:
    answer = await served.post(body)
    assert answer.status_code == 400
    assert said in answer.text
    assert served.reviewer.asked == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (review(object=0).replace(b'"object":0', b'"object":' + b"[" * 200_000), "AdmissionReview"),
        (review(object=0).replace(b'"object":0', b'"object":' + b"[" * 2000 + b"]" * 2000), "AdmissionReview"),
        (review(userInfo="ann"), "`$.request.userInfo`"),
    ],
    ids=["not closed", "deep", "no user"],
)
async def test_a_review_that_cannot_be_read_is_a_refusal_and_no_failure(served: Served, body: bytes, said: str) -> None:
    """A webhook whose failures are ignored would let it pass."""
    answer = await served.post(body)
    assert answer.status_code == 200
    response = answer.json()["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 400)
    assert said in response["status"]["message"]
    assert served.reviewer.asked == []


async def test_a_review_that_is_too_large_is_a_refusal_and_no_failure(served: Served) -> None:
    """A failure would be let through by failurePolicy Ignore: whoever writes enough would go around the rule."""
    large = review(object={"status": {"message": "x" * REVIEW_LIMIT}})
    answer = await served.response(large)
    assert (answer["uid"], answer["allowed"]) == ("705ab4f5-6393-11e8-b7cc-42010a800002", False)
    for size in (len(large), REVIEW_LIMIT):
        assert str(size) in answer["status"]["message"]
    assert served.reviewer.asked == []
    assert (await served.response(review()))["allowed"]


async def test_too_much_that_is_no_review_at_all_is_not_held(served: Served) -> None:
    answer = await served.post(b"x" * (REVIEW_LIMIT + 1))
    assert answer.status_code == 413


async def test_what_takes_too_long_is_refused_before_the_api_server_gives_up() -> None:
    reviewer = Reviewer()
    reviewer.answer = None
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": review()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": PATH, "method": "POST", "query_string": b"timeout=1s"}
    await WebhookApp({PATH: reviewer})(scope, receive, send)
    assert sent[0]["status"] == 200
    answer = json.loads(sent[1]["body"])["response"]
    assert (answer["allowed"], answer["status"]["code"]) == (False, 503)
    assert "0.75 s" in answer["status"]["message"]


async def test_an_error_of_ours_is_left_to_the_failure_policy(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.reviewer.answer = RuntimeError("a bug")
    assert (await served.post(review())).status_code == 500
    assert "a bug" in caplog.text


async def test_other_paths_and_methods_are_none(served: Served) -> None:
    assert (await served.http.post("/elsewhere", content=review())).status_code == 404
    assert (await served.http.get(PATH)).status_code == 405
    assert (await served.http.get("/healthz")).status_code == 200
    assert served.reviewer.asked == []


@pytest.mark.parametrize("method", ["CONNECT", "POST", "TRACE"])
async def test_health_is_only_read(served: Served, caplog: pytest.LogCaptureFixture, method: str) -> None:
    """After a success for CONNECT, HTTP allows no body: it would be an error, with its traceback in the log."""
    assert (await served.http.request(method, "/healthz")).status_code == 405
    assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_plain_http_gets_no_answer(served: Served) -> None:
    async with plain_http(60) as http:
        with pytest.raises(httpx2.TransportError):
            await http.post(f"http://127.0.0.1:{served.port}{PATH}", content=review())


async def test_all_reviews_together_are_bounded() -> None:
    """Many callers that each send less than the limit, and never end."""
    webhooks = WebhookApp({PATH: Reviewer()})
    scope = {"type": "http", "path": PATH, "method": "POST", "query_string": b"timeout=30s"}
    chunk, endless = b"x" * (REVIEW_LIMIT - 1), asyncio.Event()
    waiting = asyncio.Semaphore(0)
    statuses: list[int] = []

    async def caller() -> None:
        chunks = iter([chunk])

        async def receive() -> dict[str, Any]:
            for body in chunks:
                return {"type": "http.request", "body": body, "more_body": True}
            waiting.release()
            await endless.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await webhooks(scope, receive, send)

    callers = [asyncio.create_task(caller()) for _ in range(HELD_LIMIT // len(chunk))]
    for _ in callers:
        await waiting.acquire()
    await caller()
    assert statuses == [503]
    endless.set()
    await asyncio.gather(*callers)
    assert set(statuses[1:]) == {400}
    statuses.clear()
    await caller()  # what they held is free again
    assert statuses == [400]


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        (b"timeout=2s", 2.0),
        (b"a=b&timeout=30s", 30.0),
        (b"", DEFAULT_S),
        (b"timeout=0s", DEFAULT_S),
        (b"timeout=x", 10.0),
    ],
)
def test_the_api_server_says_how_long_it_waits(query: bytes, seconds: float) -> None:
    assert review_timeout_s(query) == seconds


async def test_a_new_certificate_drops_no_connection_and_serves_the_next(served: Served, tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient) -> object:
        async with http.stream("POST", PATH, content=review()) as answer:
            await answer.aread()
            assert answer.status_code == 200
            return answer.extensions["network_stream"].get_extra_info("client_addr")

    before = await ask(served.http)
    assert before is not None
    trust = put_pair(tmp_path)
    served.certificates.refresh()
    assert await ask(served.http) == before  # on the connection that was there
    url = f"https://127.0.0.1:{served.port}"
    async with httpx2.AsyncClient(base_url=url, verify=trust, trust_env=False, timeout=60) as another:
        await ask(another)


async def test_an_answer_does_not_wait_for_acknowledgements(served: Served) -> None:
    """asyncio sets TCP_NODELAY only on sockets that name their protocol; without it each answer took 40 ms more."""
    bound = bind_socket("127.0.0.1", 0)
    assert bound.proto == socket.IPPROTO_TCP
    bound.close()


async def test_until_there_is_a_certificate_a_caller_is_refused_at_once() -> None:
    class NothingYet:
        ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca_bundle = b""
        ready = asyncio.Event()

        async def run(self) -> None:
            await asyncio.Event().wait()

    bound = bind_socket("127.0.0.1", 0)
    running = asyncio.create_task(serve_webhooks(WebhookApp({}), NothingYet(), bound))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    bound.close()
