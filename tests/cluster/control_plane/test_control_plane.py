"""The control plane itself: what it lets in, what it writes down, and that nothing of it outlives its owner."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from muster_sandbox.controlplane.admin import AdminClient, RequestRefused
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, TAINTER, install
from muster_sandbox.programs.binaries import NoControlPlane


def admin_of(control_plane: ControlPlane, kubeconfig: Path) -> AdminClient:
    """A client with the token of a kubeconfig that kubeconfig_for wrote."""
    token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    return AdminClient(control_plane.server, control_plane.ca_file, token=token)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", "Exec format error"),
        ("#!/bin/sh\necho boo\nexit 1\n", "'boo"),
        ("#!/bin/sh\necho Kubernetes v1.19.3\n", "v1.19"),
    ],
)
def test_a_program_that_is_no_api_server_is_told_in_one_line(tmp_path: Path, program: str, said: str) -> None:
    server = tmp_path / "kube-apiserver"
    server.write_text(program)
    server.chmod(0o700)
    with pytest.raises(NoControlPlane, match=re.escape(said)):
        ControlPlane(tmp_path).start()


def test_an_agent_may_not_touch_nodes_nor_create_its_own_row(control_plane: ControlPlane) -> None:
    with admin_of(control_plane, control_plane.kubeconfig_for(AGENT, NAMESPACE)) as agent:
        agent.get("/apis/muster.dev/v1alpha1/nodehealths")
        row = {"metadata": {"name": "any"}}
        refusals: list[Callable[[], object]] = [
            partial(agent.patch, "/api/v1/nodes/any", {"metadata": {"labels": {"a": "b"}}}),
            partial(agent.patch, "/api/v1/nodes/any/status", {"status": {}}),
            partial(agent.get, "/api/v1/nodes"),
            partial(agent.create, "/apis/muster.dev/v1alpha1/nodehealths", row),
            partial(agent.patch, "/apis/muster.dev/v1alpha1/nodehealths/any", {"spec": {}}),
            partial(agent.delete, "/apis/muster.dev/v1alpha1/nodehealths/any"),
        ]
        for call in refusals:
            with pytest.raises(RequestRefused) as refused:
                call()
            assert refused.value.status == 403
        # allowed, so the answer is about the object and no longer about rights
        with pytest.raises(RequestRefused) as refused:
            agent.patch("/apis/muster.dev/v1alpha1/nodehealths/nobody/status", {"status": {}})
        assert refused.value.status == 404


def test_a_tainter_may_patch_nodes_and_hold_leases_only_in_its_namespace(control_plane: ControlPlane) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "bed"}, "spec": {}}
    leases = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
    with admin_of(control_plane, control_plane.kubeconfig_for(TAINTER, NAMESPACE)) as tainter:
        with pytest.raises(RequestRefused) as refused:
            tainter.patch("/api/v1/nodes/nobody", {"metadata": {"labels": {"a": "b"}}})
        assert refused.value.status == 404
        tainter.create(leases.format(NAMESPACE), lease)
        control_plane.admin.delete(f"{leases.format(NAMESPACE)}/bed")
        for path in (leases.format("default"), "/api/v1/namespaces/default/pods"):
            with pytest.raises(RequestRefused) as refused:
                tainter.create(path, lease)
            assert refused.value.status == 403


def test_a_person_is_known_by_the_name_in_their_kubeconfig(control_plane: ControlPlane, tmp_path: Path) -> None:
    user = json.loads(control_plane.kubeconfig_for_user("eve@example.com").read_text())["users"][0]["user"]
    files = tmp_path / "crt", tmp_path / "key"
    for file, data in zip(files, ("client-certificate-data", "client-key-data"), strict=True):
        file.write_bytes(base64.b64decode(user[data]))
    with (
        AdminClient(control_plane.server, control_plane.ca_file, client=files) as eve,
        pytest.raises(RequestRefused, match=r'User \\?"eve@example.com\\?" cannot list'),
    ):
        eve.get("/api/v1/nodes")


def test_installing_twice_changes_nothing(control_plane: ControlPlane) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodehealths.muster.dev"
    before = control_plane.admin.get(path)["metadata"]["resourceVersion"]
    install(control_plane.admin)
    assert control_plane.admin.get(path)["metadata"]["resourceVersion"] == before


def test_the_audit_log_counts_who_asked_what_between_two_moments(control_plane: ControlPlane, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.admin.create(maps, {"metadata": {"name": "before"}})
    start = control_plane.audit.mark()
    for name in ("one", "two", "three"):
        control_plane.admin.create(maps, {"metadata": {"name": name}})
    control_plane.admin.get(maps)
    end = control_plane.audit.mark()
    control_plane.admin.delete(f"{maps}/one")

    counted = control_plane.audit.count(start, end, keep=lambda request: request.user == "admin")
    assert counted == {("admin", "create", "configmaps"): 3, ("admin", "list", "configmaps"): 1}
    later = list(control_plane.audit.requests(end))
    assert [each.name for each in later if each.writes and each.user == "admin"] == ["one"]


def test_a_killed_owner_leaves_no_process_and_no_directory(binaries: Path, tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    script = f"""
import json, os, sys, time
from pathlib import Path
from muster_sandbox.controlplane.cluster import ControlPlane
plane = ControlPlane(Path({str(binaries)!r})).start()
draft = Path({str(said)!r} + ".draft")
draft.write_text(json.dumps([plane.process_ids, str(plane.data)]))
draft.rename({str(said)!r})
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 200
        while not said.exists():
            assert owner.poll() is None, "the owner ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        groups, data = json.loads(said.read_text())
        assert len(groups) == 4
        # a frozen component must go as well
        os.killpg(groups["kube-scheduler"], signal.SIGSTOP)
    finally:
        owner.kill()
        owner.wait()
    deadline = time.monotonic() + 60
    while any(_runs(group) for group in groups.values()) or Path(data).exists():
        assert time.monotonic() < deadline, f"still there: {groups} {data}"
        time.sleep(0.05)


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_api_server_can_be_away_and_come_back(binaries: Path) -> None:
    with ControlPlane(binaries, audit=False) as plane:
        plane.admin.create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
        plane.pause()
        with (
            AdminClient(plane.server, plane.ca_file, token="none", timeout_s=0.5) as other,
            pytest.raises(Exception, match="timed out"),
        ):
            other.get("/version")
        plane.resume()
        assert plane.admin.exists("/api/v1/namespaces/kept")
        plane.kill_apiserver()
        assert not plane.admin.ready()
        plane.restart_apiserver()
        assert plane.admin.exists("/api/v1/namespaces/kept")
