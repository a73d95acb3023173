"""Facts about OpenShift's SecurityContextConstraints.

The names of the fields, and which of them are required, are those of the CRD securitycontextconstraints.crd.yaml in
security/v1 of https://github.com/openshift/api (2a3d739, August 2026). What nonroot-v2 allows is what
scc-nonroot-v2.yaml in https://github.com/openshift/microshift (8e16b12) says.
"""

from tests.chart.helm_render import Object

API = "security.openshift.io/v1/SecurityContextConstraints"
REQUIRED: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID"), bool),
    **dict.fromkeys(("allowHostPorts", "allowPrivilegedContainer", "readOnlyRootFilesystem"), bool),
    **dict.fromkeys(("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities", "volumes"), list),
    "priority": (int, type(None)),
}
OPTIONAL: dict[str, type] = {
    "allowPrivilegeEscalation": bool,
    **dict.fromkeys(("runAsUser", "seLinuxContext", "fsGroup", "supplementalGroups"), dict),
    **dict.fromkeys(("users", "groups", "seccompProfiles"), list),
}
_SCHEMAS: dict[object, Object] = {
    bool: {"type": "boolean"},
    list: {"type": "array", "nullable": True, "items": {"type": "string"}},
    dict: {"type": "object", "nullable": True, "properties": {"type": {"type": "string"}}},
}
STRATEGIES = {
    "runAsUser": {"MustRunAs", "MustRunAsRange", "MustRunAsNonRoot", "RunAsAny"},
    "seLinuxContext": {"MustRunAs", "RunAsAny"},
    "fsGroup": {"MustRunAs", "RunAsAny"},
    "supplementalGroups": {"MustRunAs", "RunAsAny"},
}
# FSType of security/v1/types.go, of those that a chart's values can name
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "image",
    "nfs",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
NONROOT: Object = {
    "allowHostDirVolumePlugin": False,
    "allowHostNetwork": False,
    "allowHostPID": False,
    "allowHostPorts": False,
    "allowPrivilegedContainer": False,
    "allowPrivilegeEscalation": False,
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "runAsUser": {"type": "MustRunAsNonRoot"},
    "volumes": sorted(VOLUMES - {"hostPath", "nfs"}),
}


def definition() -> Object:
    """A CRD with these fields and no others, so that the API server drops what it does not know."""
    properties: Object = {"metadata": {"type": "object"}, "priority": {"type": "integer", "nullable": True}}
    for field, kind in (REQUIRED | OPTIONAL).items():
        properties.setdefault(field, _SCHEMAS.get(kind, {}))
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "required": sorted(REQUIRED), "properties": properties},
        },
    }
    names = {"plural": "securitycontextconstraints", "singular": "securitycontextconstraint"}
    names |= {"kind": "SecurityContextConstraints", "listKind": "SecurityContextConstraintsList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "securitycontextconstraints.security.openshift.io"},
        "spec": {"group": "security.openshift.io", "scope": "Cluster", "names": names, "versions": [version]},
    }
