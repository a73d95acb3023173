"""The resource metrics API (metrics.k8s.io/v1beta1), as a metrics-server serves it: an APIService of the real API
server, behind which a server over TLS reports what the pods of a namespace use.

The figures are not of real processes: a load is spread evenly over the instances of an IPUJob, as requests to a service
are, and every pod of an instance uses the share of its instance.
"""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from muster_operator.job.names import INSTANCE
from muster_sandbox.controlplane.admin import AdminClient
from muster_sandbox.controlplane.certificates import Authority
from muster_sandbox.controlplane.cluster import ControlPlane

GROUP = "metrics.k8s.io"
ROOT = f"/apis/{GROUP}/v1beta1"
APISERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{GROUP}"
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/v1beta1",
    "resources": [
        {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
    ],
}


class MetricsApi(ThreadingHTTPServer):
    """load: of all instances together, in thousandths of a core. selectors: of the lists that were asked for."""

    daemon_threads = True

    def __init__(self, admin: AdminClient, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.load = 0
        self.selectors: list[str] = []
        self._admin = admin
        self._one_at_a_time = threading.Lock()

    def list_pods(self, namespace: str, selector: str) -> dict[str, Any]:
        self.selectors.append(selector)
        with self._one_at_a_time:
            found = self._admin.get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})["items"]
        running = [pod for pod in found if pod["status"].get("phase") == "Running"]
        share = self.load / max(1, len({pod["metadata"]["labels"][INSTANCE] for pod in running}))
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        items = [
            {
                "metadata": {"name": pod["metadata"]["name"], "namespace": namespace, "creationTimestamp": now},
                "timestamp": now,
                "window": "0s",
                "containers": [
                    {"name": each["name"], "usage": {"cpu": f"{round(share)}m", "memory": "1Mi"}}
                    for each in pod["spec"]["containers"]
                ],
            }
            for pod in running
        ]
        return {"kind": "PodMetricsList", "apiVersion": f"{GROUP}/v1beta1", "metadata": {}, "items": items}


class _Handler(BaseHTTPRequestHandler):
    server: MetricsApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        match url.path.removeprefix(ROOT).strip("/").split("/"):
            case [""] if url.path.startswith(ROOT):
                self._answer(200, RESOURCES)
            case ["namespaces", namespace, "pods"]:
                [selector] = parse_qs(url.query).get("labelSelector", [""])
                self._answer(200, self.server.list_pods(namespace, selector))
            case _:
                self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@contextmanager
def serving_metrics(plane: ControlPlane, namespace: str) -> Iterator[MetricsApi]:
    """Registered with the API server while the block runs."""
    authority = Authority("metrics")
    issued = authority.server("metrics", [f"metrics.{namespace}.svc"])
    pair = plane.data / f"metrics-{namespace}.pem"
    pair.touch(mode=0o600)
    pair.write_bytes(issued.key + issued.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair)
    pki = plane.data / "pki"
    with AdminClient(plane.server, plane.ca_file, client=(pki / "admin.crt", pki / "admin.key")) as admin:
        server = MetricsApi(admin, context)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            _register(plane.admin, namespace, server.server_address[1], authority.certificate)
            yield server
        finally:
            # first: discovery and the deletion of namespaces fail while an APIService has no server
            plane.admin.delete(APISERVICE)
            server.shutdown()
            server.server_close()
            thread.join()


def _register(admin: AdminClient, namespace: str, port: int, authority: bytes) -> None:
    service = {"metadata": {"name": "metrics"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    admin.create(f"/api/v1/namespaces/{namespace}/services", service)
    body = {
        "metadata": {"name": APISERVICE.rpartition("/")[2]},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(authority).decode(),
            "service": {"namespace": namespace, "name": "metrics", "port": port},
        },
    }
    admin.create(APISERVICE.rpartition("/")[0], body)
