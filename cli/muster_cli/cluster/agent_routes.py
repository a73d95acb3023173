"""Three routes to an agent: a URL, the agents' Service (from a pod), or the proxy of the API server."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from muster_cli.cluster.login import load_user_config
from muster_cli.usage import UsageError
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import Credentials, FileToken, NoToken

PORT = 3333
NAMESPACE = "autopilot"
SERVICE = "autopilot-healthchecks"
PORT_FORWARD = f"kubectl -n {NAMESPACE} port-forward svc/{SERVICE} {PORT}"
PROXY_TRIES = 3  # the proxy picks an agent at random each time


@dataclass(frozen=True)
class AgentRoute:
    """config: server and credentials. path: of an agent's ``/status`` on that server. description: for messages.
    tries: attempts while no agent has answered. permits: the API server, where the command proves the user's right if
    the agent requires it (muster_kube.run_permit); None: the agent is at a URL."""

    config: ClusterConfig
    path: str
    description: str
    tries: int = 1
    cluster: bool = False  # ``config`` is that of the API server
    permits: ClusterConfig | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="URL of an agent, such as http://127.0.0.1:3333 of a port-forward")
    parser.add_argument(
        "--namespace", default=NAMESPACE, help=f"namespace of the agents; default: the chart's, {NAMESPACE}"
    )
    parser.add_argument("--service", default=SERVICE, help=f"Service of the agents; default: the chart's, {SERVICE}")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with a bearer token for the agent at --url, which must be loopback or https, because plain HTTP "
        "does not protect a token",
    )


def find_route(
    arguments: argparse.Namespace, load: Callable[[Path | None], ClusterConfig] = load_user_config
) -> AgentRoute:
    """Raises UsageError; ConfigError if no cluster is configured."""
    credentials: Credentials = FileToken(arguments.token_file) if arguments.token_file else NoToken()
    if arguments.url is not None:
        server = _base(arguments.url)
        if arguments.token_file and not _protects_tokens(server):
            raise UsageError(
                f"--token-file with --url {server}: plain HTTP does not protect the token: use a port-forward, "
                f"{PORT_FORWARD}, and --url http://127.0.0.1:{PORT}"
            )
        return AgentRoute(ClusterConfig("--url", server, credentials=credentials), "/status", f"the agent at {server}")
    if arguments.token_file:
        raise UsageError("--token-file needs --url: without it, the command proves your right with your kubeconfig")
    config = load(arguments.kubeconfig)
    if config.origin.startswith("in-cluster"):
        server = f"http://{arguments.service}.{arguments.namespace}.svc:{PORT}"
        description = f"the Service of the agents, {server}, from this pod"
        return AgentRoute(ClusterConfig("in-cluster", server), "/status", description, permits=config)
    place = f"/api/v1/namespaces/{arguments.namespace}/services/http:{arguments.service}:{PORT}/proxy/status"
    description = f"Service {arguments.namespace}/{arguments.service} through the API server {config.server}"
    return AgentRoute(config, place, f"{description} ({config.origin})", PROXY_TRIES, cluster=True, permits=config)


def _protects_tokens(server: str) -> bool:
    parts = urlsplit(server)
    try:
        return parts.scheme == "https" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        port_is_bad = parts.port == 0
    except ValueError:
        parts, port_is_bad = urlsplit(""), True
    path = parts.path.rstrip("/").removesuffix("/status")
    whole = (
        parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment or parts.username)
    )
    if not whole or port_is_bad or not url.isprintable() or " " in url:
        raise UsageError(f"--url {url!r}: expected http://HOST[:PORT] or https://HOST[:PORT]")
    return f"{parts.scheme}://{parts.netloc}{path}"
