"""The words of messages that people act on. Each is held here and nowhere else, so that its English can be improved."""

from pathlib import Path

import pytest
import yaml

from muster_kube.api.config import load_config
from muster_kube.api.credentials import FileToken
from muster_kube.api.errors import ConfigError, NotFound, Unreachable
from muster_kube.controller.leader_client import NotLeading
from muster_kube.process.command_line import Parser
from muster_kube.webhook.key_pairs import KeyPairSet, UnusableKeyPair, make_key_pair, read_key_pairs

PATH = "/api/v1/nodes/n1"
NOW = 1_800_000_000.0


def kubeconfig(folder: Path, server: str = "https://h:1", context: str = "c") -> Path:
    document = {
        "current-context": context,
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "absent")
    assert str(error.value) == f"kubeconfig {tmp_path}/absent: no such file"


def test_kubeconfig_whose_context_is_none(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, context="x")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value) == f"{path}: current-context: found 'x', expected one of the contexts: 'c'"


def test_kubeconfig_whose_server_is_no_address(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, server="ftp://h")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value) == f"{path}: clusters[k].server: found 'ftp://h', expected https://HOST[:PORT]"


async def test_token_file_that_is_empty(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError) as error:
        await FileToken(tmp_path / "token").header()
    assert str(error.value) == f"token file {tmp_path}/token is empty: expected a bearer token"


def test_answers_of_the_api_server() -> None:
    assert str(NotFound(404, "NotFound", "gone", PATH)) == f"{PATH}: 404 NotFound: gone"
    assert str(Unreachable("timeout", PATH)) == f"{PATH}: timeout"
    assert str(NotLeading(PATH)) == f"{PATH}: not written: this replica is no longer the leader"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls.key": make_key_pair(["h"], NOW).key}, "tls.key: does not match the certificate in tls.crt"),
        (
            {"ca.crt": make_key_pair(["h"], NOW).authority},
            "ca.crt: none of its 1 certificates has signed the one in tls.crt",
        ),
    ],
    ids=["key", "authority"],
)
def test_key_pair_that_is_none(change: dict[str, bytes], message: str) -> None:
    data = {name: value for name, value in KeyPairSet(make_key_pair(["h"], NOW)).data().items() if value is not None}
    with pytest.raises(UnusableKeyPair) as error:
        read_key_pairs(data | change)
    assert str(error.value) == message


def test_flag_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Parser(prog="muster thing").parse_args(["--frob"])
    assert "muster: unrecognized arguments: --frob" in capsys.readouterr().err
