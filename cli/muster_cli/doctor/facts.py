"""The few fields of objects that the doctor reads; everything else is skipped while decoding."""

import msgspec

from muster_kube.api.objects import Api, Metadata, NodeCondition
from muster_kube.api.pods import ContainerState, ContainerStatus, PodPlacement, PodProgress
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealthSpec, NodeHealthStatus


class WorkloadToleration(Api, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class WorkloadPodSpec(Api, frozen=True):
    """A pod's spec, of a workload."""

    service_account_name: str = "default"
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[WorkloadToleration, ...] = ()


class _PodTemplate(Api, frozen=True):
    spec: WorkloadPodSpec = WorkloadPodSpec()


class _WorkloadSpec(Api, frozen=True):
    replicas: int = 1
    template: _PodTemplate = _PodTemplate()


class _WorkloadStatus(Api, frozen=True):
    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class Workload(Api, frozen=True):
    """A Deployment or a DaemonSet."""

    metadata: Metadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()


class ContainerFacts(ContainerStatus, frozen=True):
    restart_count: int = 0
    last_state: ContainerState = ContainerState()


class _PodStatus(PodProgress, frozen=True):
    phase: str = ""
    init_container_statuses: tuple[ContainerFacts, ...] = ()
    container_statuses: tuple[ContainerFacts, ...] = ()

    @property
    def ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.conditions)


class _Selected(Api, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _Term(Api, frozen=True):
    match_fields: tuple[_Selected, ...] = ()


class _Terms(Api, frozen=True):
    node_selector_terms: tuple[_Term, ...] = ()


class _NodeAffinity(Api, frozen=True):
    required: _Terms = msgspec.field(default=_Terms(), name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(Api, frozen=True):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _PodSpec(PodPlacement, frozen=True):
    affinity: _Affinity = _Affinity()


class PodFacts(Api, frozen=True):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def node(self) -> str:
        """The node of the pod; for an unscheduled pod of a DaemonSet the node that it is meant for."""
        if self.spec.node_name:
            return self.spec.node_name
        for term in self.spec.affinity.node_affinity.required.node_selector_terms:
            for field in term.match_fields:
                if field.key == "metadata.name" and len(field.values) == 1:
                    return field.values[0]
        return ""


class _Involved(Api, frozen=True):
    kind: str = ""
    name: str = ""


class EventFacts(Api, frozen=True):
    metadata: Metadata
    involved_object: _Involved = _Involved()
    reason: str = ""
    message: str = ""
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def at(self) -> float:
        """Seconds since the epoch; 0 if not known."""
        return seconds(self.last_timestamp or self.event_time or self.first_timestamp or "")


class HealthFacts(Api, frozen=True):
    """The part of a NodeHealth that the doctor reads."""

    metadata: Metadata
    spec: NodeHealthSpec = NodeHealthSpec()
    status: NodeHealthStatus = NodeHealthStatus()


class DataMap(Api, frozen=True):
    """A ConfigMap, or a Secret."""

    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class AccountFacts(Api, frozen=True):
    metadata: Metadata


class ServiceReference(Api, frozen=True):
    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(Api, frozen=True):
    ca_bundle: str = ""
    url: str = ""
    service: ServiceReference | None = None


class Webhook(Api, frozen=True):
    name: str
    client_config: ClientConfig = ClientConfig()
    failure_policy: str = "Fail"


class WebhookConfiguration(Api, frozen=True):
    metadata: Metadata
    webhooks: tuple[Webhook, ...] = ()


class _Ready(Api, frozen=True):
    ready: bool | None = None


class _Endpoint(Api, frozen=True):
    conditions: _Ready = _Ready()


class EndpointSlice(Api, frozen=True):
    metadata: Metadata
    endpoints: tuple[_Endpoint, ...] | None = None

    @property
    def ready(self) -> int:
        # an absent condition means ready, as Kubernetes defines it
        return sum(each.conditions.ready is not False for each in self.endpoints or ())


class _ServicePort(Api, frozen=True):
    name: str = ""
    port: int = 0


class _ServiceSpec(Api, frozen=True):
    ports: tuple[_ServicePort, ...] = ()


class Service(Api, frozen=True):
    metadata: Metadata
    spec: _ServiceSpec = _ServiceSpec()


class CrdVersion(Api, frozen=True):
    name: str
    served: bool = False
    storage: bool = False
    schema: msgspec.Raw = msgspec.Raw(b"{}")


class _CrdSpec(Api, frozen=True):
    versions: tuple[CrdVersion, ...] = ()


class _CrdStatus(Api, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()
    stored_versions: tuple[str, ...] = ()


class CrdFacts(Api, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Metadata
    spec: _CrdSpec = _CrdSpec()
    status: _CrdStatus = _CrdStatus()


class GroupVersion(Api, frozen=True):
    group_version: str = ""


class ApiGroup(Api, frozen=True):
    name: str = ""
    versions: tuple[GroupVersion, ...] = ()


class ApiGroups(Api, frozen=True):
    groups: tuple[ApiGroup, ...] = ()


class ApiResource(Api, frozen=True):
    """One of the resources of an API version. name: the plural, for paths."""

    name: str = ""
    kind: str = ""
    namespaced: bool = False


class ApiResources(Api, frozen=True):
    resources: tuple[ApiResource, ...] = ()


class ServerVersion(Api, frozen=True):
    git_version: str = ""


class _ControlPlaneContainer(Api, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class _ControlPlanePodSpec(Api, frozen=True):
    containers: tuple[_ControlPlaneContainer, ...] = ()


class ControlPlanePod(Api, frozen=True):
    """A static pod of the control plane, whose first container is the component, as kubeadm writes it."""

    metadata: Metadata
    spec: _ControlPlanePodSpec = _ControlPlanePodSpec()

    @property
    def words(self) -> tuple[str, ...]:
        """The command line of the component."""
        return next(((*each.command, *each.args) for each in self.spec.containers), ())

    @property
    def version(self) -> str:
        """The tag of the image; empty without one."""
        image = next((each.image.partition("@")[0] for each in self.spec.containers), "")
        return image.rpartition("/")[2].partition(":")[2]


class _BasicDevice(Api, frozen=True):
    attributes: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class _SliceDevice(_BasicDevice, frozen=True):
    """basic: holds the attributes in resource.k8s.io/v1beta1; later versions have them on the device itself."""

    basic: _BasicDevice = _BasicDevice()

    @property
    def attribute_names(self) -> set[str]:
        return {*self.attributes, *self.basic.attributes}


class _DeviceSliceSpec(Api, frozen=True):
    driver: str = ""
    node_name: str = ""
    devices: tuple[_SliceDevice, ...] = ()


class DeviceSlice(Api, frozen=True):
    """A ResourceSlice: devices that a driver publishes, of one node as a rule."""

    metadata: Metadata
    spec: _DeviceSliceSpec = _DeviceSliceSpec()


class _DeviceRuleStatus(Api, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()


class DeviceRule(Api, frozen=True):
    """A DeviceTaintRule, which keeps pods off the devices that it selects."""

    metadata: Metadata
    status: _DeviceRuleStatus = _DeviceRuleStatus()

    @property
    def is_reported(self) -> bool:
        """Whether the controller-manager has reported on the rule, as it does for every effect."""
        return any(each.type == "EvictionInProgress" for each in self.status.conditions)
