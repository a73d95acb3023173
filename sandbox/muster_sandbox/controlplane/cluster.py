"""A real Kubernetes control plane on loopback: etcd, API server, controller-manager and scheduler.

RBAC is enabled, service account tokens are real (TokenRequest), and the audit log has every request. There is no
kubelet; :mod:`muster_sandbox.simulation.nodes` creates nodes. All files are in one directory, on tmpfs if it has room,
because etcd waits for the disk on every write.
"""

import contextlib
import http.client
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from muster_sandbox.controlplane import components
from muster_sandbox.controlplane.admin import AdminClient
from muster_sandbox.controlplane.audit import POLICY, AuditLog
from muster_sandbox.controlplane.certificates import (
    Authority,
    IssuedCertificate,
    new_key,
    private_pem,
    public_pem,
    write_private,
)
from muster_sandbox.controlplane.components import HERE, Layout, Placement
from muster_sandbox.controlplane.kubeconfig import bearer_user, certificate_user, write_kubeconfig
from muster_sandbox.processes import ManagedProcess, ProcessDied, ProcessReaper, wait_for
from muster_sandbox.programs.binaries import NoControlPlane

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a new folder is created in it
SHARED_MEMORY_LEAST = 2 << 30  # bytes: 10,000 nodes with their history and audit log take about half of it
OLDEST_MINOR = 20
TOKEN_VALID_S = 24 * 3600
START_TRIES = 3  # another process may take a free port before the component binds it
FIRST_PORT, END_OF_PORTS = 15_000, 30_000  # below Kubernetes' NodePorts (30000) and Linux' local ports (32768)

_given_ports: set[int] = set()


class ControlPlane:
    """A context manager; or use :meth:`start` and :meth:`stop`.

    binaries: the folder that :func:`muster_sandbox.programs.control_plane.find_or_build` returns
    audit: write every request into the audit log
    extra_args: more arguments by component (``etcd``, ``kube-apiserver``, ...)
    placement: where the components run; default: here

    Raises ProcessDied or TimeoutError, with the end of the log.
    """

    def __init__(
        self,
        binaries: Path,
        *,
        audit: bool = True,
        start_timeout_s: float = 180.0,
        extra_args: Mapping[str, Sequence[str]] = MappingProxyType({}),
        placement: Placement = HERE,
    ) -> None:
        self._binaries = binaries
        self._audit = audit
        self._timeout_s = start_timeout_s
        self._extra_args = extra_args
        self._placement = placement
        self._minor = 0
        self._reaper: ProcessReaper | None = None
        self._components: dict[str, ManagedProcess] = {}
        self._admin: AdminClient | None = None
        self._authority: Authority | None = None
        self._data: Path | None = None
        self._port = 0
        self.server_version = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        self._minor = read_minor_version(self._binaries / "kube-apiserver")
        for attempt in range(1, START_TRIES + 1):
            try:
                self._start_once()
            except ProcessDied as error:
                self.stop()
                if "address already in use" not in str(error) or attempt == START_TRIES:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def stop(self) -> None:
        """Stop all components and delete the temporary directory. Does nothing if nothing runs."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        # the clients first: an API server without etcd fills its log with errors
        for component in reversed(self._components.values()):
            component.kill()  # the data is deleted, so etcd need not shut down cleanly
        self._components = {}
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
        self._data = None

    # -- for tests

    @property
    def minor(self) -> int:
        """The Y of Kubernetes 1.Y."""
        return self._minor

    @property
    def data(self) -> Path:
        if self._data is None:
            raise RuntimeError("the control plane is not running")
        return self._data

    @property
    def server(self) -> str:
        """The API server's address, ``https://127.0.0.1:PORT``."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_file(self) -> Path:
        return self.data / "pki" / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator (group system:masters)."""
        return self.data / "admin.kubeconfig"

    @property
    def admin(self) -> AdminClient:
        """A client with an administrator's permissions."""
        if self._admin is None:
            raise RuntimeError("the control plane is not running")
        return self._admin

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.data / "audit.log", self._ping)

    @property
    def process_ids(self) -> dict[str, int]:
        """Process ID, which is also the group ID, of each running component."""
        return {name: each.pid for name, each in self._components.items() if each.pid is not None}

    def require_alive(self) -> None:
        """Raises ProcessDied with the end of its log if a component does not run."""
        for component in self._components.values():
            component.require_alive()

    def kubeconfig_for(self, service_account: str, namespace: str) -> Path:
        """A kubeconfig with a token of a service account."""
        token = self._request_token(service_account, namespace)
        return self._write_kubeconfig(f"{namespace}-{service_account}", bearer_user(token), namespace)

    def token_file_for(self, service_account: str, namespace: str, audience: str) -> Path:
        """A file with a token of a service account for one audience; the API server does not accept it."""
        path = self.data / f"{namespace}-{service_account}-{audience}.token"
        return write_private(path, self._request_token(service_account, namespace, audience).encode())

    def _request_token(self, service_account: str, namespace: str, *audiences: str) -> str:
        """A token (TokenRequest) of a service account, which is created if missing. No audience: the API server."""
        self.admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}}, exist_ok=True)
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.admin.create(accounts, {"metadata": {"name": service_account}}, exist_ok=True)
        answer = self.admin.create(
            f"{accounts}/{service_account}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": TOKEN_VALID_S, "audiences": list(audiences)},
            },
        )
        return str(answer["status"]["token"])

    def kubeconfig_for_user(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate for a user and groups, with the permissions that RBAC gives them."""
        if self._authority is None:
            raise RuntimeError("the control plane is not running")
        safe = re.sub(r"[^A-Za-z0-9_.-]", "-", user)
        return self._write_kubeconfig(f"user-{safe}", _user_of(self._authority.client(user, groups)), "default")

    def kubeconfig_for_node(self, name: str) -> Path:
        """The kubeconfig of a kubelet, with a client certificate."""
        return self.kubeconfig_for_user(f"system:node:{name}", ["system:nodes"])

    def pause(self) -> None:
        """Freeze the API server (SIGSTOP): connections stay open without responses."""
        self._components["kube-apiserver"].signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._components["kube-apiserver"].signal(signal.SIGCONT)

    def kill_apiserver(self) -> None:
        """Kill it (SIGKILL): connections break, new ones are refused until :meth:`restart_apiserver`."""
        self._components["kube-apiserver"].kill()

    def kill_etcd(self) -> None:
        """Kill it (SIGKILL): the API server answers no request that needs it until :meth:`restart_etcd`."""
        self._components["etcd"].kill()

    def restart_etcd(self) -> None:
        """Stop it if it runs, start it with its data, and wait until the API server is ready, if that runs."""
        etcd = self._components["etcd"]
        etcd.stop()
        etcd.start()
        if self._components["kube-apiserver"].pid is not None:
            self._wait_for_apiserver()

    def set_audit_policy(self, policy: str = POLICY) -> None:
        """What the audit log holds from now on. Restarts the API server, which reads it only when it starts."""
        (self.data / "audit-policy.yaml").write_text(policy)
        self.restart_apiserver()

    def restart_apiserver(self) -> None:
        """Stop it if it runs, start it on the same port, and wait until it is ready."""
        component = self._components["kube-apiserver"]
        component.stop()
        deadline = time.monotonic() + self._timeout_s
        while True:
            component.start()
            try:
                self._wait_for_apiserver()
            except ProcessDied as error:
                component.kill()
                # an outgoing connection of another process may use the port for a moment
                if "address already in use" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    # -- start

    def _start_once(self) -> None:
        self._reaper = ProcessReaper()
        self._data = _make_data_dir()
        self._reaper.remove_at_end(self._data)
        self._authority = Authority("muster-testbed")
        pki = self._write_pki(self._authority)
        etcd_port, self._port = self._placement.ports or free_ports(2)
        self._write_kubeconfigs(self._authority)
        self._admin = AdminClient(self.server, self.ca_file, client=(pki / "admin.crt", pki / "admin.key"))
        if self._audit:
            (self.data / "audit-policy.yaml").write_text(POLICY)
        layout = Layout(self.data, self._port, etcd_port, self._minor)
        flags = _output(self._binaries / "etcd", "--help")
        etcd = self._run("etcd", components.etcd_arguments(layout, flags))
        wait_for(lambda: _etcd_healthy(etcd_port), alive=[etcd], timeout_s=self._timeout_s, what="etcd")
        self._run("kube-apiserver", components.apiserver_arguments(layout, audit=self._audit))
        self._wait_for_apiserver()
        manager = self._run("kube-controller-manager", components.manager_arguments(layout))
        scheduler = self._run("kube-scheduler", components.scheduler_arguments(layout))
        self.server_version = str(self._admin.get("/version")["gitVersion"])
        # created last: from here on pods can be created
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_for(
            lambda: self.admin.exists(account), alive=[manager, scheduler], timeout_s=self._timeout_s, what=account
        )
        scheduler.require_alive()

    def _run(self, name: str, arguments: Sequence[str]) -> ManagedProcess:
        if self._reaper is None:
            raise RuntimeError("the control plane is not running")
        command = [*self._placement.enter, str(self._binaries / name), *arguments, *self._extra_args.get(name, ())]
        component = ManagedProcess(name, command, self.data / f"{name}.log", self._reaper)
        self._components[name] = component
        component.start()
        return component

    def _wait_for_apiserver(self) -> None:
        wait_for(
            self.admin.ready,
            alive=[self._components["kube-apiserver"], self._components["etcd"]],
            timeout_s=self._timeout_s,
            what="kube-apiserver's /readyz",
        )

    def _write_pki(self, authority: Authority) -> Path:
        pki = self.data / "pki"
        pki.mkdir(mode=0o700, exist_ok=True)
        authority.write(pki, "ca")
        hosts = ["127.0.0.1", "10.96.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        _write_pair(pki, "apiserver", authority.server("kube-apiserver", hosts))
        _write_pair(pki, "kubelet-client", authority.client("kube-apiserver", ["system:masters"]))
        _write_pair(pki, "admin", authority.client("admin", ["system:masters"]))
        key = new_key()
        write_private(pki / "sa.key", private_pem(key))
        (pki / "sa.pub").write_bytes(public_pem(key))
        return pki

    def _write_kubeconfigs(self, authority: Authority) -> None:
        pki = self.data / "pki"
        admin = IssuedCertificate((pki / "admin.crt").read_bytes(), (pki / "admin.key").read_bytes())
        self._write_kubeconfig("admin", _user_of(admin), "default")
        for component in ("controller-manager", "scheduler"):
            pair = authority.client(f"system:kube-{component}")
            self._write_kubeconfig(component, _user_of(pair), "default")

    def _write_kubeconfig(self, name: str, user: Mapping[str, str], namespace: str) -> Path:
        path = self.data / f"{name}.kubeconfig"
        write_kubeconfig(path, server=self.server, ca=self.ca_file.read_bytes(), user=user, namespace=namespace)
        return path

    def _ping(self, user_agent: str) -> None:
        pki = self.data / "pki"
        with AdminClient(
            self.server, self.ca_file, client=(pki / "admin.crt", pki / "admin.key"), user_agent=user_agent
        ) as admin:
            admin.get("/version")


def read_minor_version(apiserver: Path) -> int:
    """The Y of Kubernetes 1.Y. Raises NoControlPlane if the version is unknown or too old."""
    try:
        printed = _output(apiserver, "--version")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoControlPlane(f"{apiserver} --version: {error}") from error
    match = re.search(r"v1\.(\d+)", printed)
    if match is None:
        raise NoControlPlane(f"{apiserver} --version printed {printed[:200]!r}: expected v1.{OLDEST_MINOR} or later")
    minor = int(match[1])
    if minor < OLDEST_MINOR:
        raise NoControlPlane(f"{apiserver} is {match[0]}: expected v1.{OLDEST_MINOR} or later")
    return minor


def free_ports(count: int) -> list[int]:
    """Free ports on 127.0.0.1. A process gets none twice, and the kernel gives none of them to a connection
    unless ip_local_port_range is changed. Another process may take one before it is used."""
    found: list[int] = []
    while len(found) < count:
        port = FIRST_PORT + secrets.randbelow(END_OF_PORTS - FIRST_PORT)  # random may be seeded alike in two processes
        if port in _given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given_ports.add(port)
            found.append(port)
    return found


def _make_data_dir() -> Path:
    parent: str | None = None
    if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= SHARED_MEMORY_LEAST:
        parent = str(SHARED_MEMORY)
    return Path(tempfile.mkdtemp(prefix="muster-testbed-", dir=parent))


def _etcd_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _output(program: Path, argument: str) -> str:
    done = subprocess.run([str(program), argument], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


def _write_pair(pki: Path, name: str, pair: IssuedCertificate) -> None:
    (pki / f"{name}.crt").write_bytes(pair.certificate)
    write_private(pki / f"{name}.key", pair.key)


def _user_of(pair: IssuedCertificate) -> dict[str, str]:
    return certificate_user(pair.certificate, pair.key)
