"""A replica that cannot start does not lead meanwhile: in a crash loop, it would hold the Lease most of the time."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from tests.kube.conftest import FakeApi
from tests.part_processes import PartProcess

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE

WAIT_S = 60.0


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    named = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    config = {"current-context": "c", "clusters": [named], "contexts": [context], "users": users}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
    return file


async def ends(kubeconfig: Path, *flags: str) -> tuple[int, str]:
    """The exit code of a replica, and the last line of its log."""
    log = kubeconfig.with_name("tainter.log")
    words = ["--kubeconfig", str(kubeconfig), "--namespace", "muster", "--host", "127.0.0.1", "--port", "0", *flags]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_TAINTER_")}
    process = PartProcess("muster_tainter", words, environ, log)
    try:
        code = await asyncio.to_thread(process.wait, WAIT_S)
    finally:
        process.kill()
        process.stdout.close()
    return code, log.read_text().splitlines()[-1]


async def test_its_webhooks_port_is_in_use(api: FakeApi, kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, line = await ends(kubeconfig, "--webhook-port", port)
    assert code == EXIT_UNKNOWN
    assert port in line
    assert api.asked == []


async def test_its_webhook_has_no_certificate(api: FakeApi, kubeconfig: Path, tmp_path: Path) -> None:
    code, line = await ends(kubeconfig, "--webhook-port", "0", "--cert-dir", str(tmp_path))
    assert code == EXIT_USAGE
    assert str(tmp_path / "tls.crt") in line
    assert api.asked == []
