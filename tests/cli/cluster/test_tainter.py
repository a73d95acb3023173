"""In which namespace the tainter is, for a person who may not look everywhere."""

from typing import Any, cast

import pytest
from tests.wording.facts import missing_facts

from muster_cli.cluster.tainter import NamespaceUnknown, find_namespace
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Forbidden


class Shut:
    """A cluster in which nothing may be read."""

    async def get(self, path: str, **_: Any) -> None:
        raise Forbidden(403, "Forbidden", "no", path)


async def test_missing_right_to_list_leases_differs_from_no_leases() -> None:
    config = ClusterConfig(origin="test", server="https://127.0.0.1:1", namespace="team")
    with pytest.raises(NamespaceUnknown) as told:
        await find_namespace(cast(KubeClient, Shut()), config, None)
    assert not missing_facts(str(told.value), "Leases", "team", "--namespace")
