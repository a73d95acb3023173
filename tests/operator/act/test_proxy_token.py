"""The token that the operator sends to the V-IPU proxy, and those that it never sends."""

import base64
from pathlib import Path

import msgspec
import pytest

from muster_kube.api.errors import ConfigError
from muster_operator.act.proxy_token import ProxyToken
from muster_operator.job.partition_api import PROXY_AUDIENCE

API_SERVER = "https://kubernetes.default.svc.cluster.local"


def token(*audiences: str, claim: object = None) -> str:
    """As the API server makes them: aud is a list. claim: what stands there instead."""
    parts = ({"alg": "RS256"}, {"aud": claim or audiences, "sub": "system:serviceaccount:muster:muster-operator"}, "s")
    encoded = (base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=").decode() for part in parts)
    return ".".join(encoded)


@pytest.mark.parametrize("content", [token(PROXY_AUDIENCE), token(claim=PROXY_AUDIENCE)], ids=["list", "one"])
async def test_a_token_for_the_proxy_alone_is_sent(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(f"{content}\n")
    assert await ProxyToken(file).header() == f"Bearer {content}"


@pytest.mark.parametrize(
    "content",
    [
        token(API_SERVER),
        token(API_SERVER, PROXY_AUDIENCE),
        token(PROXY_AUDIENCE, API_SERVER),
        token(claim=API_SERVER),
        token(),
        token(claim=7),
        "",
        "secret",
        "a.b.c",
        "a.b",
        "a.e30.c",
        f"a.{'x' * 4097}.c",
    ],
)
async def test_any_other_token_is_never_sent(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigError, match=str(file)):
        await ProxyToken(file).header()


async def test_a_file_that_turns_into_another_token_is_not_sent_either(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(PROXY_AUDIENCE))
    held = ProxyToken(file)
    first = await held.header()
    file.write_text(token(API_SERVER))
    assert held.refused(first)
    with pytest.raises(ConfigError, match=API_SERVER):
        await held.header()


async def test_without_a_file_there_is_no_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "token")):
        await ProxyToken(tmp_path / "token").header()
