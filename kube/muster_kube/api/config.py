"""Finds the address of the API server, its CA, and the client's credentials.

Order: the flag, in-cluster, ``$KUBECONFIG``, ``~/.kube/config``; ``ClusterConfig.origin`` names the one used. Proxy
settings of the environment and of kubeconfigs are ignored. This module reads tokens and certificates; the caller's
``log_in`` handles exec plug-ins and OIDC.
"""

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from muster_kube.api.credentials import Credentials, FileToken, NoToken, StaticToken
from muster_kube.api.errors import ConfigError
from muster_kube.api.kubeconfig import KubeconfigContext, read_kubeconfigs
from muster_kube.api.login import LogIn

__all__ = ["SERVICE_ACCOUNT_DIR", "ClusterConfig", "ConfigError", "load_config"]

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClusterConfig:
    """One cluster and one identity.

    origin:    the source of the configuration, for the log
    server:    ``https://host:port[/prefix]`` without a trailing slash
    namespace: of the context, or the pod's own
    user:      the kubeconfig user's name, empty in a pod
    ca:        PEM bundle to trust; None: the system's
    client_certificate, client_key: PEM, or None
    """

    origin: str
    server: str
    namespace: str = "default"
    user: str = ""
    ca: bytes | None = field(default=None, repr=False)
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    client_certificate: bytes | None = field(default=None, repr=False)
    client_key: bytes | None = field(default=None, repr=False)
    credentials: Credentials = field(default_factory=NoToken, repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """A new context. Raises ConfigError if certificate, key or CA are invalid or do not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(cadata=self.ca.decode("ascii"))
            except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
                raise ConfigError(f"{self.origin}: certificate-authority: not a PEM certificate: {error}") from error
        if self.client_certificate is not None:
            self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        # ssl reads certificates only from files; these exist during one call, readable by this user only
        with tempfile.TemporaryDirectory(prefix="muster-") as folder:
            pem = Path(folder, "client.pem")
            pem.touch(mode=0o600)
            pem.write_bytes((self.client_certificate or b"") + b"\n" + (self.client_key or b""))
            try:
                # an encrypted key must not prompt on a terminal: an empty passphrase makes it an error
                context.load_cert_chain(pem, password=lambda: "")
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError(f"{self.origin}: client-certificate and client-key: {error}") from error


def load_config(
    kubeconfig: Path | None = None,
    *,
    log_in: LogIn | None = None,
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> ClusterConfig:
    """The cluster to connect to. Raises ConfigError, which names the places that were searched.

    ``log_in`` is called if a kubeconfig's user has an exec plug-in or an auth-provider. Without ``log_in`` this is an
    error.
    """
    if kubeconfig is not None:
        return _from_kubeconfig(read_kubeconfigs([kubeconfig.expanduser()]), f"--kubeconfig {kubeconfig}", log_in)
    if environ.get("KUBERNETES_SERVICE_HOST") and (service_account_dir / "token").exists():
        return _in_cluster(environ, service_account_dir)
    if environ.get("KUBECONFIG"):
        files = [Path(part).expanduser() for part in environ["KUBECONFIG"].split(os.pathsep) if part]
        origin = f"$KUBECONFIG {environ['KUBECONFIG']}"
        try:
            return _from_kubeconfig(read_kubeconfigs(files, skip_missing=True), origin, log_in)
        except ConfigError as error:
            raise ConfigError(f"$KUBECONFIG: {error}") from error
    default = (home or Path.home()) / ".kube" / "config"
    if default.exists():
        return _from_kubeconfig(read_kubeconfigs([default]), str(default), log_in)
    raise ConfigError(
        "no cluster configured: pass --kubeconfig FILE, set $KUBECONFIG, "
        f"create {default}, or run in a pod with a service account token "
        f"({service_account_dir / 'token'} or $KUBERNETES_SERVICE_HOST is missing)"
    )


def _in_cluster(environ: Mapping[str, str], folder: Path) -> ClusterConfig:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not port.isdigit():
        raise ConfigError(f"$KUBERNETES_SERVICE_PORT: found {port!r}, expected a number")
    try:
        ca: bytes | None = (folder / "ca.crt").read_bytes()
    except FileNotFoundError:
        ca = None
    except OSError as error:
        raise ConfigError(f"{folder / 'ca.crt'}: cannot read the file: {error.strerror}") from error
    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""  # a manually created token volume may lack it
    return ClusterConfig(
        origin=f"in-cluster ({folder})",
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or "default",
        ca=ca,
        credentials=FileToken(folder / "token"),
    )


def _from_kubeconfig(selected: KubeconfigContext, origin: str, log_in: LogIn | None) -> ClusterConfig:
    cluster, user = selected.cluster, selected.user
    server = cluster.text("server")
    if server is None:
        raise ConfigError(f"{cluster.where('server')}: missing, expected https://HOST:PORT")
    _check_server(server, cluster.where("server"))
    certificate = key = None
    credentials: Credentials = NoToken()
    if user is not None:
        for legacy in ("username", "password"):
            if user.body.get(legacy):
                raise ConfigError(
                    f"{user.where(legacy)}: passwords are not supported (Kubernetes dropped them in 1.19); "
                    "allowed: token, tokenFile, client-certificate, exec, auth-provider"
                )
        certificate, key = user.pem("client-certificate"), user.pem("client-key")
        if certificate is not None and key is None:
            raise ConfigError(f"{user.where('client-key')}: missing, but client-certificate is set")
        token_file, token = user.path("tokenFile"), user.text("token")
        if token_file is not None:  # takes precedence over token, as in kubectl
            credentials = FileToken(token_file)
        elif token is not None:
            credentials = StaticToken(token)
        elif login := next((each for each in ("exec", "auth-provider") if user.body.get(each)), None):
            if log_in is None:
                raise ConfigError(
                    f"{user.where(login)}: not supported here: use a token, a tokenFile or a client certificate "
                    "(only the command line runs exec plug-ins and auth-providers)"
                )
            answer = log_in(selected)
            credentials = answer.credentials
            if answer.client_certificate is not None:
                certificate, key = answer.client_certificate, answer.client_key
    return ClusterConfig(
        origin=f"{origin} (context {selected.context.name})",
        server=server.rstrip("/"),
        namespace=selected.namespace,
        user=user.name if user is not None else "",
        ca=cluster.pem("certificate-authority"),
        insecure_skip_tls_verify=cluster.flag("insecure-skip-tls-verify"),
        tls_server_name=cluster.text("tls-server-name"),
        client_certificate=certificate,
        client_key=key,
        credentials=credentials,
    )


def _check_server(server: str, where: str) -> None:
    try:
        parts = urlsplit(server)
        port_is_bad = parts.port == 0
    except ValueError:
        parts, port_is_bad = urlsplit(""), True
    if parts.scheme not in ("https", "http") or not parts.hostname or port_is_bad or parts.query or parts.fragment:
        raise ConfigError(f"{where}: found {server!r}, expected https://HOST[:PORT]")
