import base64
import datetime
import os
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from muster_kube.api.config import load_config
from muster_kube.api.credentials import StaticToken
from muster_kube.api.errors import ConfigError
from muster_kube.api.login import LoginAnswer

NOWHERE = Path("/nonexistent")


def document(server="https://h:1", user=None, cluster=None, context="c"):
    return {
        "current-context": context,
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, doc: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(doc if isinstance(doc, str) else yaml.safe_dump(doc))
    return path


def load(path=None, environ=None, home=NOWHERE, sa=NOWHERE):
    return load_config(path, environ=environ or {}, home=home, service_account_dir=sa)


def service_account(folder: Path) -> Path:
    folder.mkdir()
    (folder / "token").write_text("t")
    (folder / "namespace").write_text("muster-system")
    return folder


def pair() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + datetime.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def test_the_flag_comes_before_everything(tmp_path):
    flag = write(tmp_path / "flag", document("https://flag"))
    other = write(tmp_path / "env", document("https://env"))
    found = load(flag, {**IN_CLUSTER, "KUBECONFIG": str(other)}, sa=service_account(tmp_path / "sa"))
    assert found.server == "https://flag"
    assert found.origin == f"--kubeconfig {flag} (context c)"


async def test_in_cluster_comes_before_the_environment(tmp_path):
    other = write(tmp_path / "env", document("https://env"))
    found = load(None, {**IN_CLUSTER, "KUBECONFIG": str(other)}, sa=service_account(tmp_path / "sa"))
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "muster-system")
    assert await found.credentials.header() == "Bearer t"
    assert "in-cluster" in found.origin


def test_an_ipv6_service_host_is_bracketed(tmp_path):
    environ = {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert load(None, environ, sa=service_account(tmp_path / "sa")).server == "https://[fd00::1]:6443"


def test_a_pod_without_a_token_goes_on_to_the_environment(tmp_path):
    other = write(tmp_path / "env", document("https://env"))
    assert load(None, {**IN_CLUSTER, "KUBECONFIG": str(other)}).server == "https://env"


def test_of_several_files_the_first_that_has_a_thing_wins_and_missing_ones_are_passed_over(tmp_path):
    one = {"current-context": "c", "users": [{"name": "u", "user": {"token": "first"}}]}
    paths = [tmp_path / "absent", write(tmp_path / "one", one), write(tmp_path / "two", document("https://two"))]
    found = load(None, {"KUBECONFIG": os.pathsep.join(map(str, paths))})
    assert found.server == "https://two"
    assert found.credentials._header == "Bearer first"


def test_relative_paths_are_relative_to_their_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "ca.pem").write_bytes(pair()[0])
    path = write(tmp_path / "sub" / "config", document(cluster={"certificate-authority": "ca.pem"}))
    assert load(path).ssl_context().get_ca_certs()


def test_the_home_folder_comes_last(tmp_path):
    write(tmp_path / ".kube" / "config", document("https://home"))
    assert load(home=tmp_path).server == "https://home"


def test_nothing_configured_names_every_way():
    with pytest.raises(ConfigError) as caught:
        load()
    for way in ("--kubeconfig", "/nonexistent/token", "$KUBECONFIG", "/nonexistent/.kube/config"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    ("doc", "facts"),
    [
        (document(context="x"), ("current-context:", "'x'", "'c'")),
        ({"contexts": []}, ("current-context:",)),
        ({**document(), "clusters": []}, ("contexts[c].cluster:", "'k'")),
        ({**document(), "users": None}, ("contexts[c].user:", "'u'")),
        (document(server=""), ("clusters[k].server:",)),
        (document(server="ftp://x"), ("clusters[k].server:", "'ftp://x'", "https://")),
        (document(server="https://x:99999"), ("clusters[k].server:", "'https://x:99999'")),
        (document(cluster={"insecure-skip-tls-verify": "yes"}), ("insecure-skip-tls-verify:", "'yes'", "true")),
        (document(cluster={"certificate-authority-data": "%%"}), ("certificate-authority-data:", "base64")),
        (document(cluster={"certificate-authority": "nix"}), ("clusters[k].certificate-authority:", "nix")),
        (document(user={"username": "a", "password": "b"}), ("users[u].username:",)),
        (document(user={"token": 17}), ("users[u].token:", "17")),
        (document(user={"client-certificate-data": "eA=="}), ("users[u].client-key:",)),
        ("{", ("YAML",)),
        ("- 1", ("[1]",)),
        ({**document(), "contexts": "c"}, ("contexts:", "'c'")),
        ({**document(), "contexts": ["c"]}, ("contexts[0]:", "name")),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, doc, facts):
    path = write(tmp_path / "config", doc)
    with pytest.raises(ConfigError) as caught:
        load(path)
    for fact in (*facts, str(path)):
        assert fact in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent"):
        load(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"\$KUBECONFIG: .*absent"):
        load(None, {"KUBECONFIG": str(tmp_path / "absent")})


def test_no_secret_is_printed(tmp_path):
    path = write(tmp_path / "config", document(user={"token": "sesame" * 20}))
    assert "sesame" not in repr(load(path))


def test_inline_certificates_load_and_leave_nothing_on_disk(tmp_path, monkeypatch):
    certificate, key = pair()
    user = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }
    cluster = {"certificate-authority-data": base64.b64encode(certificate).decode()}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    context = load(write(tmp_path / "config", document(user=user, cluster=cluster))).ssl_context()
    assert context.get_ca_certs()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_key_that_does_not_belong_to_its_certificate_is_named(tmp_path):
    (tmp_path / "crt").write_bytes(pair()[0])
    (tmp_path / "key").write_bytes(pair()[1])
    path = write(tmp_path / "config", document(user={"client-certificate": "crt", "client-key": "key"}))
    with pytest.raises(ConfigError, match=r"client-certificate.*client-key"):
        load(path).ssl_context()


def test_a_ca_that_is_no_certificate_is_named(tmp_path):
    (tmp_path / "ca").write_text("hello")
    path = write(tmp_path / "config", document(cluster={"certificate-authority": "ca"}))
    with pytest.raises(ConfigError, match="certificate-authority"):
        load(path).ssl_context()


@pytest.mark.parametrize("key", ["exec", "auth-provider"])
def test_a_user_who_has_to_log_in_is_handed_to_whoever_can(tmp_path, key):
    path = write(tmp_path / "config", document(user={key: {"command": "plug"}}))
    seen = []

    def log_in(selected):
        seen.append(selected.user.body[key])
        return LoginAnswer(StaticToken("t"))

    found = load_config(path, log_in=log_in, environ={}, home=NOWHERE, service_account_dir=NOWHERE)
    assert seen == [{"command": "plug"}]
    assert found.credentials._header == "Bearer t"
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert f"{path}: users[u].{key}: " in str(caught.value)


def test_a_token_needs_no_login(tmp_path):
    path = write(tmp_path / "config", document(user={"token": "t", "exec": {"command": "plug"}}))
    assert load(path).credentials._header == "Bearer t"
