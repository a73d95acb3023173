"""What a job's pod template may not ask for, and with which exception it may. Each row is an attack."""

import copy
from typing import Any

import pytest
from tests.operator.admission.specs import Spec, least, samples

from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.validation import SpecLimits, review_spec

SPEC = "spec.workers.template.spec"
NOTHING: frozenset[str] = frozenset()


def job(pod: Spec | None = None, container: Spec | None = None, annotations: Spec | None = None) -> Spec:
    """A job whose template has these fields beside an ordinary container."""
    spec = apply_defaults(least()).spec
    template = spec["workers"]["template"]
    template["spec"] |= pod or {}
    template["spec"]["containers"][0] |= container or {}
    if annotations:
        template["metadata"] = {"annotations": annotations}
    return {"metadata": {"name": "job"}, "spec": spec}


def context(**fields: Any) -> Spec:
    return job(container={"securityContext": fields})


def pod_context(**fields: Any) -> Spec:
    return job(pod={"securityContext": fields})


def capability(*names: str) -> Spec:
    return context(capabilities={"add": list(names)})


def paths(body: Spec, allow: frozenset[str] = NOTHING, former: Spec | None = None) -> list[str]:
    return [error.path for error in review_spec(body, former, SpecLimits(allow=allow)).errors]


INIT = {"name": "init", "image": "i:1", "securityContext": {"privileged": True}}
DISK = {"name": "disk", "hostPath": {"path": "/"}}
MAIN = f"{SPEC}.containers[0].securityContext"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/main"

# job, path of the error, exception that allows it
ATTACKS: list[tuple[Spec, str, str]] = [
    (job({"hostNetwork": True}), f"{SPEC}.hostNetwork", "hostNetwork"),
    (job({"hostPID": True}), f"{SPEC}.hostPID", "hostPID"),
    (job({"hostIPC": True}), f"{SPEC}.hostIPC", "hostIPC"),
    (job({"nodeName": "control-plane-1"}), f"{SPEC}.nodeName", "nodeName"),
    (job({"serviceAccountName": "admin"}), f"{SPEC}.serviceAccountName", "serviceAccount:admin"),
    (job({"serviceAccount": "admin"}), f"{SPEC}.serviceAccount", "serviceAccount:admin"),
    (job({"volumes": [DISK]}), f"{SPEC}.volumes[0].hostPath", "hostPath"),
    (job({"initContainers": [INIT]}), f"{SPEC}.initContainers[0].securityContext.privileged", "privileged"),
    (job({"ephemeralContainers": [INIT]}), f"{SPEC}.ephemeralContainers[0].securityContext.privileged", "privileged"),
    (job(container={"ports": [{"containerPort": 1, "hostPort": 1}]}), f"{SPEC}.containers[0].ports[0].hostPort",
     "hostNetwork"),
    (job(container={"readinessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}}}),
     f"{SPEC}.containers[0].readinessProbe.httpGet.host", "hostNetwork"),
    (job(container={"lifecycle": {"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}}),
     f"{SPEC}.containers[0].lifecycle.preStop.tcpSocket.host", "hostNetwork"),
    (context(privileged=True), f"{MAIN}.privileged", "privileged"),
    (context(privileged="true"), f"{MAIN}.privileged", "privileged"),
    (context(procMount="Unmasked"), f"{MAIN}.procMount", "privileged"),
    (context(seccompProfile={"type": "Unconfined"}), f"{MAIN}.seccompProfile.type", "privileged"),
    (context(appArmorProfile={"type": "Unconfined"}), f"{MAIN}.appArmorProfile.type", "privileged"),
    (context(seLinuxOptions={"type": "spc_t"}), f"{MAIN}.seLinuxOptions.type", "privileged"),
    (context(seLinuxOptions={"user": "system_u"}), f"{MAIN}.seLinuxOptions.user", "privileged"),
    (context(windowsOptions={"hostProcess": True}), f"{MAIN}.windowsOptions.hostProcess", "privileged"),
    (pod_context(seccompProfile={"type": "Unconfined"}), f"{SPEC}.securityContext.seccompProfile.type", "privileged"),
    (pod_context(sysctls=[{"name": "kernel.msgmax"}]), f"{SPEC}.securityContext.sysctls[0].name", "privileged"),
    (job(annotations={APPARMOR: "unconfined"}),
     f"spec.workers.template.metadata.annotations[{APPARMOR}]", "privileged"),
    (capability("SYS_ADMIN"), f"{MAIN}.capabilities.add", "capability:SYS_ADMIN"),
    (capability("IPC_LOCK"), f"{MAIN}.capabilities.add", "capability:IPC_LOCK"),
    (capability("ALL"), f"{MAIN}.capabilities.add", "capability:ALL"),
    (capability("sys_admin"), f"{MAIN}.capabilities.add", "privileged"),
    (capability("CAP_SYS_ADMIN"), f"{MAIN}.capabilities.add", "privileged"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "path", "allowed"), ATTACKS, ids=[path.rpartition("].")[2] for _, path, _ in ATTACKS])
def test_it_is_refused_unless_it_is_listed(body: Spec, path: str, allowed: str) -> None:
    assert paths(body) == [path]
    assert paths(body, frozenset([allowed])) == []


def test_an_exception_for_one_name_is_none_for_another() -> None:
    allow = frozenset(["serviceAccount:trainer", "capability:IPC_LOCK", "hostIPC"])
    assert paths(job({"serviceAccountName": "admin"}), allow) == [f"{SPEC}.serviceAccountName"]
    assert paths(capability("IPC_LOCK", "SYS_ADMIN"), allow) == [f"{MAIN}.capabilities.add"]
    assert paths(job({"hostPID": True, "hostIPC": True}), allow) == [f"{SPEC}.hostPID"]


@pytest.mark.parametrize(
    "body",
    [
        job({"hostNetwork": False, "hostPID": None, "serviceAccountName": "default", "nodeName": ""}),
        job({"volumes": [{"name": "data", "nfs": {"server": "s", "path": "/"}, "hostPath": None}]}),
        context(privileged=False, capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, procMount="Default"),
        pod_context(
            runAsUser=0, seccompProfile={"type": "RuntimeDefault"}, sysctls=[{"name": "net.ipv4.tcp_syncookies"}]
        ),
        job(annotations={APPARMOR: "runtime/default"}),
        job(container={"livenessProbe": {"httpGet": {"port": 80, "path": "/"}}, "lifecycle": None}),
        context(seLinuxOptions={"type": "container_t"}),
    ],
)
def test_what_every_pod_may_have_is_allowed(body: Spec) -> None:
    assert paths(body) == []


def test_the_published_files_need_no_exception() -> None:
    for name, body in samples():
        assert paths(body | {"spec": apply_defaults(body["spec"]).spec}) == [], name


def test_an_update_cannot_hide_behind_what_is_stored_already() -> None:
    """The stored job was created before the rule, or past the webhook: a template with other containers is refused."""
    stored = job({"hostPID": True})
    scaled, other = copy.deepcopy(stored), copy.deepcopy(stored)
    scaled["spec"]["jobInstances"] = 2
    other["spec"]["workers"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    assert paths(scaled, former=stored) == []
    assert paths(other, former=stored) == [f"{SPEC}.hostPID"]
