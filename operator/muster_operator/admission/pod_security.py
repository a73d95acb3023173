"""Errors of a job's pod template that asks for more than an ordinary pod may have.

The operator creates the pods with its own account, so an API server that limits what a *user's* pods may ask for would
not apply these limits. A template may ask for no more than the Pod Security level Baseline allows
(https://kubernetes.io/docs/concepts/security/pod-security-standards/), may not choose a node past the scheduler, and
runs as the namespace's default service account. The setting ``allow_in_templates`` lists exceptions.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from muster_operator.admission.errors import SpecError, show_value
from muster_operator.admission.numbers import mapping

PRIVILEGED, HOST_NETWORK = "privileged", "hostNetwork"
HOST_PATH, NODE_NAME = "hostPath", "nodeName"
HOST_NAMESPACES = (HOST_NETWORK, "hostPID", "hostIPC")
CAPABILITY, SERVICE_ACCOUNT = "capability:", "serviceAccount:"
# what the setting may list
ALLOWED_FORMS = re.compile(
    rf"({'|'.join((PRIVILEGED, *HOST_NAMESPACES, HOST_PATH, NODE_NAME))})"
    rf"|{CAPABILITY}[A-Z][A-Z_]{{1,62}}|{SERVICE_ACCOUNT}[a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?"
)
ALLOWED_WORDS = ", ".join(
    (PRIVILEGED, *HOST_NAMESPACES, HOST_PATH, NODE_NAME, f"{CAPABILITY}NAME", f"{SERVICE_ACCOUNT}NAME")
)

# of the level Baseline: a runtime gives a container all of these by default, so adding them is no gain
CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
SYSCTLS = frozenset(
    [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    ]
)
SELINUX_TYPES = frozenset(("container_t", "container_init_t", "container_kvm_t", "container_engine_t"))
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP = ("seccomp.security.alpha.kubernetes.io/pod", "container.seccomp.security.alpha.kubernetes.io/")
DEFAULT_ACCOUNT = "default"
# a kubelet connects to this host on behalf of the pod; part of the level Baseline from Kubernetes 1.34 on
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
HANDLERS = ("httpGet", "tcpSocket")
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_SPEC = "spec.workers.template.spec"
_ANNOTATIONS = "spec.workers.template.metadata.annotations"


def security_errors(template: object, allow: Collection[str]) -> Iterator[SpecError]:
    """``template``: spec.workers.template, as received; its form is checked elsewhere. allow: see ALLOWED_FORMS."""
    whole = mapping(template)
    spec = mapping(whole.get("spec"))
    for key in HOST_NAMESPACES:
        if _is_set(spec.get(key)) and key not in allow:
            yield _not_allowed(f"{_SPEC}.{key}", spec[key], key)
    if _is_set(spec.get("nodeName")) and NODE_NAME not in allow:
        yield _not_allowed(f"{_SPEC}.nodeName", spec["nodeName"], NODE_NAME)
    for key in ("serviceAccountName", "serviceAccount"):  # the second one is the older name
        account = spec.get(key)
        if _is_set(account) and account != DEFAULT_ACCOUNT and f"{SERVICE_ACCOUNT}{account}" not in allow:
            yield _not_allowed(f"{_SPEC}.{key}", account, f"{SERVICE_ACCOUNT}{account}")
    for index, volume in enumerate(_list(spec.get("volumes"))):
        if mapping(volume).get("hostPath") is not None and HOST_PATH not in allow:
            path = mapping(volume["hostPath"]).get("path")
            yield _not_allowed(f"{_SPEC}.volumes[{index}].hostPath", path, HOST_PATH)
    for key in CONTAINERS:
        for index, container in enumerate(_list(spec.get(key))):
            yield from _container_errors(mapping(container), f"{_SPEC}.{key}[{index}]", allow)
    if PRIVILEGED not in allow:
        yield from _confinement_errors(mapping(spec.get("securityContext")), f"{_SPEC}.securityContext")
        yield from _annotation_errors(mapping(mapping(whole.get("metadata")).get("annotations")))


def _container_errors(container: Mapping[str, Any], at: str, allow: Collection[str]) -> Iterator[SpecError]:
    if HOST_NETWORK not in allow:
        for index, port in enumerate(_list(container.get("ports"))):
            if _is_set(mapping(port).get("hostPort")):
                yield _not_allowed(f"{at}.ports[{index}].hostPort", mapping(port)["hostPort"], HOST_NETWORK)
        yield from _handler_errors(container, at, PROBES)
        yield from _handler_errors(mapping(container.get("lifecycle")), f"{at}.lifecycle", HOOKS)
    if PRIVILEGED in allow:
        return
    context, path = mapping(container.get("securityContext")), f"{at}.securityContext"
    if _is_set(context.get("privileged")):
        yield _not_allowed(f"{path}.privileged", context["privileged"], PRIVILEGED)
    if context.get("procMount") not in (None, "", "Default"):
        yield _not_allowed(f"{path}.procMount", context["procMount"], PRIVILEGED)
    for name in _list(mapping(context.get("capabilities")).get("add")):
        known = isinstance(name, str) and name in CAPABILITIES
        if not known and f"{CAPABILITY}{name}" not in allow:
            yield _not_allowed(f"{path}.capabilities.add", name, f"{CAPABILITY}{name}")
    yield from _confinement_errors(context, path)


def _handler_errors(found: Mapping[str, Any], at: str, keys: Collection[str]) -> Iterator[SpecError]:
    """``found``: holds probes or hooks under ``keys``."""
    for key in keys:
        for handler in HANDLERS:
            host = mapping(mapping(found.get(key)).get(handler)).get("host")
            if _is_set(host):
                yield _not_allowed(f"{at}.{key}.{handler}.host", host, HOST_NETWORK)


def _confinement_errors(context: Mapping[str, Any], path: str) -> Iterator[SpecError]:
    """``context``: securityContext of a pod or a container, which have these fields in common."""
    for key in ("seccompProfile", "appArmorProfile"):
        if mapping(context.get(key)).get("type") == "Unconfined":
            yield _not_allowed(f"{path}.{key}.type", "Unconfined", PRIVILEGED)
    labels = mapping(context.get("seLinuxOptions"))
    if _is_set(labels.get("type")) and labels["type"] not in SELINUX_TYPES:
        yield _not_allowed(f"{path}.seLinuxOptions.type", labels["type"], PRIVILEGED)
    for key in ("user", "role"):
        if _is_set(labels.get(key)):
            yield _not_allowed(f"{path}.seLinuxOptions.{key}", labels[key], PRIVILEGED)
    if _is_set(mapping(context.get("windowsOptions")).get("hostProcess")):
        yield _not_allowed(f"{path}.windowsOptions.hostProcess", True, PRIVILEGED)
    for index, sysctl in enumerate(_list(context.get("sysctls"))):
        if (name := mapping(sysctl).get("name")) not in SYSCTLS:
            yield _not_allowed(f"{path}.sysctls[{index}].name", name, PRIVILEGED)


def _annotation_errors(annotations: Mapping[str, Any]) -> Iterator[SpecError]:
    """Kubernetes before 1.30 (AppArmor) and before 1.27 (seccomp) reads these."""
    for key, value in annotations.items():
        unconfined = key.startswith(_SECCOMP) and value == "unconfined"
        if unconfined or (key.startswith(_APPARMOR) and not _is_confined(value)):
            yield _not_allowed(f"{_ANNOTATIONS}[{key[:63]}]", value, PRIVILEGED)


def _is_confined(profile: object) -> bool:
    return isinstance(profile, str) and (profile in ("", "runtime/default") or profile.startswith("localhost/"))


def _is_set(value: object) -> bool:
    """Whether the API server would take the field as set. Values of another type count as set."""
    return value is not None and value is not False and value != ""


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _not_allowed(path: str, found: object, needed: str) -> SpecError:
    return SpecError(path, f"{show_value(found)}: needs {needed[:80]} in allow_in_templates (chart: ipuJobs.allow)")
