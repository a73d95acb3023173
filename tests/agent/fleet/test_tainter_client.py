"""The check pvc with the tainter's rights: what the agent asks, and what becomes of every answer there may be."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.kube.conftest import Drop, FakeApi, Reply, Stream, Wire

from muster_agent.fleet.tainter_access import TainterAccess
from muster_agent.fleet.tainter_client import PATH, SPARE_S, VolumeTrialClient
from muster_agent.settings import AgentSettings, load_agent_settings
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.pvc import PVC, PvcParameters
from muster_kube.process.settings import SettingsError
from muster_sandbox.controlplane.certificates import Authority
from muster_tainter.http.volume_trials import TrialRequest

WRITTEN = {"stage": "written", "storageClass": "fast", "boundAfterSeconds": 1.5, "writtenAfterSeconds": 2.5}
LIMITS = PvcParameters(storage_class="fast", size_mib=8, bind_timeout_s=30, write_timeout_s=40.5)


class SecureApi(FakeApi):
    """The same behind TLS, for the name localhost."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]


@pytest.fixture
async def tainter() -> AsyncIterator[FakeApi]:
    made = FakeApi()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("t-1\n")
    return file


async def run(port: int, token: Path, *, url: str = "", ca: Path | None = None) -> Result:
    lent = VolumeTrialClient(TainterAccess(url or f"http://127.0.0.1:{port}", token, ca))
    return await run_probe(PVC, NodeView(name="node-7", volumes=lent), LIMITS)


async def test_the_tainter_is_asked_for_this_node_with_this_pods_token(tainter: FakeApi, token: Path):
    tainter.on("POST", PATH, Reply(200, WRITTEN))
    result = await run(tainter.port, token)
    assert result.verdict is Verdict.PASS
    assert [(m.name, m.value, m.threshold) for m in result.findings[0].measurements] == [
        ("bound", 1.5, 30.0),
        ("written", 2.5, 40.5),
    ]
    [asked] = tainter.asked
    assert asked.headers["authorization"] == "Bearer t-1"
    understood = TrialRequest.model_validate_json(asked.body)
    assert understood.node == "node-7"
    assert understood.model_dump(exclude={"node"}) == LIMITS.model_dump()


async def test_the_check_judges_what_the_tainter_found(tainter: FakeApi, token: Path):
    said = "no persistent volumes available"
    tainter.on("POST", PATH, Reply(200, WRITTEN | {"stage": "unbound", "said": said}))
    result = await run(tainter.port, token)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "ClaimNotBound")
    assert said in result.message


async def test_the_token_is_read_anew_each_time(tainter: FakeApi, token: Path):
    tainter.on("POST", PATH, Reply(200, WRITTEN))
    await run(tainter.port, token)
    token.write_text("t-2")
    await run(tainter.port, token)
    assert [asked.headers["authorization"] for asked in tainter.asked] == ["Bearer t-1", "Bearer t-2"]


def status(code: int, reason: str, message: str) -> Reply:
    return Reply(code, Wire.failure(code, reason, message))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (status(400, "BadRequest", "body.sizeMib: 0"), "400 BadRequest: body.sizeMib: 0"),
        (status(401, "Unauthorized", "does not know this token"), "does not know this token"),
        (status(403, "Forbidden", "not the agent of node node-7"), "not the agent of node node-7"),
        (status(429, "TooManyRequests", "4 trials are under way"), "4 trials are under way"),
        (status(503, "ServiceUnavailable", "this replica stops"), "this replica stops"),
        (Reply(404, b"Not Found"), "404"),
        (Reply(500, b"Internal Server Error"), "500"),
        (Reply(302, b"", headers={"Location": "http://127.0.0.1:1/"}), "302"),
        (Reply(200, b"<h1>proxy</h1>"), "proxy"),
        (Reply(200, b""), "null"),
        (Reply(200, b"[]"), "BadAnswer"),
        (Reply(200, {}), "stage"),
        (Reply(200, {"stage": "excellent"}), "excellent"),
        (Reply(200, WRITTEN | {"stage": "unbound", "boundAfterSeconds": -1}), "boundAfterSeconds"),
        (Reply(200, WRITTEN | {"said": 7}), "said"),
        (Drop(), ""),
    ],
)
async def test_whatever_trouble_there_is_with_the_tainter_it_is_unknown(
    tainter: FakeApi, token: Path, answer: Any, said: str
):
    tainter.on("POST", PATH, answer)
    result = await run(tainter.port, token)
    assert (result.verdict, result.reason, result.findings) == (Verdict.UNKNOWN, "ClaimRefused", ())
    assert said in result.message
    assert f"http://127.0.0.1:{tainter.port}" in result.message


async def test_a_tainter_that_says_nothing_is_given_up_within_the_checks_own_limit(
    tainter: FakeApi, token: Path, loop_time: Any
):
    tainter.on("POST", PATH, Stream())
    running = asyncio.create_task(run(tainter.port, token))
    await Wire.until(lambda: tainter.asked)
    await loop_time.passes(30 + 40.5 + SPARE_S)
    result = await running
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ClaimRefused")
    assert " 115.5 s" in result.message
    assert PVC.timeout_s > 600 + 600 + SPARE_S, "also with the longest limits it is ours that ends it"


async def test_a_tainter_that_is_away_is_unknown(token: Path):
    gone = FakeApi()
    await gone.start()
    await gone.stop()
    result = await run(gone.port, token)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ClaimRefused")


@pytest.mark.parametrize("content", [None, "", b"\xff\xfe"], ids=["none", "empty", "binary"])
async def test_a_token_that_cannot_be_read_is_unknown_and_named(
    tainter: FakeApi, tmp_path: Path, content: str | bytes | None
):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = await run(tainter.port, file)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ClaimRefused")
    assert str(file) in result.message
    assert tainter.asked == []


async def test_over_https_the_tainters_certificate_is_held_against_the_ca(tmp_path: Path, token: Path):
    authority, stranger = Authority("ours"), Authority("theirs")
    ca, other = tmp_path / "ca.crt", tmp_path / "other.crt"
    authority.write(tmp_path, "ca")
    stranger.write(tmp_path, "other")
    pair = authority.server("tainter", ["localhost", "127.0.0.1"])
    (tmp_path / "pair").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair")
    tainter = SecureApi(context)
    await tainter.start()
    url = f"https://127.0.0.1:{tainter.port}"
    tainter.on("POST", PATH, Reply(200, WRITTEN))
    assert (await run(0, token, url=url, ca=ca)).verdict is Verdict.PASS
    for wrong in (other, None):
        result = await run(0, token, url=url, ca=wrong)
        assert result.verdict is Verdict.UNKNOWN
        assert "CERTIFICATE_VERIFY_FAILED" in result.message
    (tmp_path / "bad.crt").write_text("no certificate")
    for bad in (tmp_path / "bad.crt", tmp_path / "none.crt"):
        assert (await run(0, token, url=url, ca=bad)).reason == "ClaimRefused"
    assert len(tainter.asked) == 1, "no token went to a stranger"
    await tainter.stop()


def test_where_the_tainter_is_comes_from_file_or_environment(tmp_path: Path):
    assert load_agent_settings(None, {"node": "n"}, {}).tainter_url is None
    environ = {"MUSTER_AGENT_TAINTER_URL": "https://muster-tainter.muster.svc:3334/", "MUSTER_AGENT_TAINTER_CA": "/ca"}
    settings = load_agent_settings(None, {"node": "n"}, environ)
    assert settings.tainter_url == "https://muster-tainter.muster.svc:3334"
    assert settings.tainter_ca == Path("/ca")
    assert settings.tainter_token == Path("/var/run/secrets/muster.dev/token")


@pytest.mark.parametrize(
    "url",
    [
        "tainter:3334", "//tainter", "ftp://tainter", "http://", "http://:3334", "http://t:99999", "http://t:0",
        "http://t:x", "http://u:p@t", "http://t/?a=b", "http://t#a", "http://t t", "http://t\n", "http://[::1", "",
    ],
)  # fmt: skip
def test_a_url_that_is_none_stops_the_start_and_is_named(url: str):
    with pytest.raises(SettingsError, match=r"MUSTER_AGENT_TAINTER_URL: "):
        load_agent_settings(None, {"node": "n"}, {"MUSTER_AGENT_TAINTER_URL": url})


@pytest.mark.parametrize("url", ["http://t", "https://t:3334", "http://10.0.0.1:3334/muster", "http://[::1]:3334"])
def test_a_url_of_a_host_is_taken(url: str):
    assert AgentSettings(node="n", tainter_url=url).tainter_url == url


def test_nothing_of_it_is_loaded_by_an_agent_that_has_no_tainter_to_ask():
    lazy = "('tainter_client', 'volume_trial')"
    code = f"import sys, muster_agent.app; print(*[n for n in sys.modules if n.endswith({lazy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
