"""Which versions of resource.k8s.io are used, by what a server says that it serves."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.errors import NotFound
from muster_tainter.devices.api_versions import GROUP, DeviceApi, NotServed, find_api

BOTH = ("resourceslices", "devicetaintrules")


class Server:
    """resources: by version."""

    def __init__(self, **resources: tuple[str, ...]) -> None:
        self._resources = resources

    async def get(self, path: str, *, type: Any) -> Any:
        if path == GROUP and self._resources:
            return msgspec.convert({"versions": [{"version": each} for each in self._resources]}, type)
        version = path.rpartition("/")[2]
        if version not in self._resources:
            raise NotFound(404, "NotFound", "", path)
        return msgspec.convert({"resources": [{"name": each} for each in self._resources[version]]}, type)


@pytest.mark.parametrize(
    ("served", "api"),
    [
        ({"v1": BOTH, "v1beta2": BOTH, "v1alpha3": BOTH}, DeviceApi("v1", "v1")),
        ({"v1": BOTH[:1], "v1beta2": BOTH, "v1alpha3": BOTH[1:]}, DeviceApi("v1beta2", "v1")),
        ({"v1": BOTH[:1], "v1alpha3": BOTH[1:]}, DeviceApi("v1alpha3", "v1")),
        ({"v1alpha3": BOTH[1:], "v1beta1": BOTH[:1]}, DeviceApi("v1alpha3", "v1beta1")),
        ({"v1": BOTH, "v2": BOTH}, DeviceApi("v1", "v1")),
    ],
)
async def test_the_newest_version_that_is_known_is_used(served: dict[str, tuple[str, ...]], api: DeviceApi) -> None:
    assert await find_api(Server(**served)) == api  # type: ignore[arg-type]


@pytest.mark.parametrize("served", [{}, {"v1": BOTH[:1]}, {"v1alpha3": BOTH[1:]}, {"v2": BOTH}])
async def test_what_is_not_served_is_said(served: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(NotServed):
        await find_api(Server(**served))  # type: ignore[arg-type]
