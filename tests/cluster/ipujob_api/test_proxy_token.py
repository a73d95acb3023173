"""The operator's token for the V-IPU proxy: no use to whoever reads the connection, and renewed without a restart."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cluster.ipujob.operator_bed import (
    OPERATOR,
    OWN,
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    training,
)

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import Unauthorized
from muster_kube.api.reviews import Reviews
from muster_operator.job.partition_api import PROXY_AUDIENCE
from muster_sandbox.controlplane.kubeconfig import bearer_user, write_kubeconfig

TOKEN = re.compile(rb"eyJ[\w-]+\.[\w-]+\.[\w-]+")  # a JSON Web Token, wherever it stands


@contextlib.asynccontextmanager
async def overheard(bed: Bed, heard: bytearray) -> AsyncIterator[str]:
    """URL of the proxy of ``bed`` for its operator. heard: all that the operator sends."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: bytearray) -> None:
        with contextlib.closing(writer):
            while chunk := await reader.read(1 << 16):
                keep += chunk
                writer.write(chunk)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert bed.proxy is not None
        host, _, port = bed.proxy.told["listening"].partition(":")
        answers, proxy = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pass_on(reader, proxy, heard), pass_on(answers, writer, bytearray()))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def test_what_the_operator_sends_to_the_proxy_opens_nothing_else(bed: Bed, tmp_path: Path) -> None:
    heard, plane = bytearray(), bed.control_plane
    async with overheard(bed, heard) as url:
        await bed.start("--vipu-proxy", url)
        job = await bed.submit("train", training())
        await job.until_running()
        await job.delete()
        await job.until_gone()
    tokens = {found.decode() for found in TOKEN.findall(heard)}
    assert tokens
    for token in tokens:
        review = Reviews(bed.api)
        assert await review.who(token) is None
        owner = await review.who(token, PROXY_AUDIENCE)
        assert owner is not None
        assert owner.service_account == (OWN, OPERATOR)
        stolen = tmp_path / "stolen"
        write_kubeconfig(
            stolen, server=plane.server, ca=plane.ca_file.read_bytes(), user=bearer_user(token), namespace=OWN
        )
        async with KubeClient(load_config(stolen), user_agent="thief", timeout_s=30) as thief:
            with pytest.raises(Unauthorized):
                await thief.get("/api/v1/nodes")


async def test_a_job_waits_while_the_proxy_refuses_the_token_and_starts_with_the_next_one(
    bed: Bed, tmp_path: Path
) -> None:
    """As in an upgrade, while operator and proxy are of two versions."""
    valid = bed.control_plane.token_file_for(OPERATOR, OWN, PROXY_AUDIENCE).read_text()
    head, _, signature = valid.rpartition(".")
    file = tmp_path / "token"
    file.write_text(f"{head}.{signature[::-1]}")
    await bed.start("--proxy-token", str(file))
    job = await bed.submit("train", training())
    await job.until_says(PROXY_AUDIENCE)
    assert await bed.vipu_partitions() == {}
    file.write_text(valid)
    await job.until_running()
