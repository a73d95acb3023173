"""Which versions of resource.k8s.io the API server serves: discovery.

DeviceTaintRule is in v1alpha3 from Kubernetes 1.33 on, in v1beta2 from 1.36 on, and in v1 from 1.37 on; the first two
are off by default. ResourceSlice is in v1beta1 from 1.32 on, in v1beta2 from 1.33 on, and in v1 from 1.34 on
(staging/src/k8s.io/api/resource of Kubernetes 1.36, and its release notes). Only v1beta1 and older nest a device's
attributes one level deeper.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Api

GROUP = "/apis/resource.k8s.io"
RULE_VERSIONS = ("v1", "v1beta2", "v1alpha3")  # the first that is served is used
SLICE_VERSIONS = ("v1", "v1beta2", "v1beta1")
RULES, SLICES = "devicetaintrules", "resourceslices"


class _Version(Api, frozen=True):
    version: str = ""


class _Group(Api, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Resource(Api, frozen=True):
    name: str = ""


class _Resources(Api, frozen=True):
    resources: tuple[_Resource, ...] = ()


@dataclass(frozen=True)
class DeviceApi:
    """API paths. rule_version: for a rule's ``apiVersion``."""

    rule_version: str
    slice_version: str

    @property
    def rules(self) -> str:
        return f"{GROUP}/{self.rule_version}/{RULES}"

    @property
    def slices(self) -> str:
        return f"{GROUP}/{self.slice_version}/{SLICES}"

    def claims(self, namespace: str) -> str:
        """ResourceClaims are in the same versions as ResourceSlices."""
        return f"{GROUP}/{self.slice_version}/namespaces/{namespace}/resourceclaims"


class NotServed(Exception):
    """The API server does not serve what a device's quarantine needs, with what is missing as its message."""


async def find_api(client: KubeClient) -> DeviceApi:
    """Raises NotServed, ApiError."""
    names = await _served(client, {*RULE_VERSIONS, *SLICE_VERSIONS})
    rules = next((version for version in RULE_VERSIONS if RULES in names.get(version, ())), None)
    if rules is None:
        raise NotServed(
            "the API server serves no DeviceTaintRule: feature gate DRADeviceTaintRules, and its API version"
        )
    return DeviceApi(rules, _slice_version(names))


async def find_slices(client: KubeClient) -> str:
    """The API path of ResourceSlices. Raises NotServed, ApiError."""
    return f"{GROUP}/{_slice_version(await _served(client, SLICE_VERSIONS))}/{SLICES}"


async def _served(client: KubeClient, versions: Iterable[str]) -> dict[str, set[str]]:
    """The resources of those of the versions that are served. Raises NotServed, ApiError."""
    try:
        served = {each.version for each in (await client.get(GROUP, type=_Group)).versions}
    except NotFound:
        raise NotServed("the API server has no resource.k8s.io (dynamic resource allocation)") from None
    names: dict[str, set[str]] = {}
    for version in served & set(versions):
        found = await client.get(f"{GROUP}/{version}", type=_Resources)
        names[version] = {each.name for each in found.resources}
    return names


def _slice_version(names: Mapping[str, Collection[str]]) -> str:
    """Raises NotServed."""
    version = next((version for version in SLICE_VERSIONS if SLICES in names.get(version, ())), None)
    if version is None:
        raise NotServed(f"the API server serves no ResourceSlice in {', '.join(SLICE_VERSIONS)}")
    return version
