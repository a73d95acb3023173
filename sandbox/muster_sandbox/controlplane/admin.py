"""A simple, synchronous API client for fixtures and the sandbox; Muster's components do not use it."""

import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

Object = dict[str, Any]  # a raw API object


class RequestRefused(RuntimeError):
    """The API server rejected the request. ``status`` is its HTTP code."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"{method} {path}: {status} {text[:500]}")
        self.status = status


class AdminClient:
    """Calls the API server with a client certificate or a token.

    Raises RequestRefused for an error response, httpx2.TransportError without a response.
    """

    def __init__(
        self,
        server: str,
        ca_file: Path,
        *,
        client: tuple[Path, Path] | None = None,
        token: str = "",
        user_agent: str = "muster-testbed",
        timeout_s: float = 30.0,
    ) -> None:
        context = ssl.create_default_context(cafile=str(ca_file))
        if client:
            context.load_cert_chain(*client)
        headers = {"user-agent": user_agent} | ({"authorization": f"Bearer {token}"} if token else {})
        # trust_env=False: loopback calls must not use a proxy
        self._http = httpx2.Client(base_url=server, verify=context, headers=headers, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Whether /readyz answers 200."""
        try:
            return self._http.get("/readyz", timeout=5.0).status_code == 200
        except httpx2.HTTPError:
            return False

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Object:
        """Repeated for 60 s while the answer is 429: the server is busy, or lacks the storage of a new CRD yet."""
        deadline = time.monotonic() + 60.0
        while True:
            try:
                return self._call("GET", path, params=params)
            except RequestRefused as error:
                if error.status != 429 or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def exists(self, path: str) -> bool:
        return self.found(path) is not None

    def found(self, path: str) -> Object | None:
        """None if it does not exist."""
        try:
            return self.get(path)
        except RequestRefused as error:
            if error.status == 404:
                return None
            raise

    def create(
        self, path: str, body: Object, *, exist_ok: bool = False, params: Mapping[str, str] | None = None
    ) -> Object:
        """Before Kubernetes 1.24 a pod is refused until its account has a token: retried for 60 s."""
        deadline = time.monotonic() + 60.0
        while True:
            try:
                return self._call("POST", path, body, params=params)
            except RequestRefused as error:
                if exist_ok and error.status == 409:
                    return self.get(f"{path}/{body['metadata']['name']}")
                if "No API token found" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def create_namespace(self, name: str) -> None:
        """Create it and wait until any client can create pods in it. Raises TimeoutError."""
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.wait_until_exists(f"/api/v1/namespaces/{name}/serviceaccounts/default")
        pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        self.create(f"/api/v1/namespaces/{name}/pods", pod, params={"dryRun": "All"})

    def apply(self, path: str, body: Object) -> Object:
        """Server-side apply with force."""
        return self._call(
            "PATCH",
            path,
            body,
            kind="application/apply-patch+yaml",
            params={"fieldManager": "muster-testbed", "force": "true"},
        )

    def patch(self, path: str, body: Object) -> Object:
        """JSON merge patch."""
        return self._call("PATCH", path, body, kind="application/merge-patch+json")

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Delete it if it exists."""
        params = {} if grace_s is None else {"gracePeriodSeconds": str(grace_s)}
        try:
            self._call("DELETE", path, params=params)
        except RequestRefused as error:
            if error.status != 404:
                raise

    def wait_until_exists(self, path: str, *, timeout_s: float = 120.0) -> None:
        """Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not self.exists(path):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} does not exist after {timeout_s:.0f} s")
            time.sleep(0.03)

    def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        kind: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Object:
        content = None if body is None else json.dumps(body).encode()
        # None, not empty: with empty parameters httpx would remove the query from the path
        given = dict(params) if params else None
        answer = self._http.request(method, path, content=content, params=given, headers={"content-type": kind})
        if not answer.is_success:
            raise RequestRefused(method, path, answer.status_code, answer.text)
        found: Object = answer.json()
        return found
