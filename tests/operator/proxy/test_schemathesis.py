"""What the proxy's OpenAPI document says is true: schemathesis makes requests of it, right ones and wrong ones.

It runs beside the other tests: schemathesis makes up its requests while tests are collected, which takes each of the
processes that share the others a second.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import ignored_auth, missing_required_header, positive_data_acceptance
from tests.operator.proxy.test_routes import Accounts
from tests.operator.proxy.world import build_request, partition_name

from muster_kube.http.service import Service
from muster_operator.job.partition_api import (
    ControllerCapacity,
    IpuCount,
    PartitionCapacity,
    PartitionEntry,
    PartitionRefusal,
    PartitionRequest,
)
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.partition_limits import PartitionLimits
from muster_operator.proxy.routes import make_app
from muster_operator.proxy.tracker.decisions import create_entry, validate_request

pytestmark = pytest.mark.beside
ENTRY = create_entry(build_request(), "v0:8090", "rack=v0")


class Intents:
    """Answers what can be answered without V-IPU."""

    async def request(self, name: str, wish: PartitionRequest) -> PartitionEntry | PartitionRefusal:
        return validate_request(name, wish, 64) or ENTRY

    async def release(self, name: str, job: str) -> PartitionEntry | PartitionRefusal | None:
        return None if job else PartitionRefusal(why="Invalid", message="job")


class Capacity:
    async def count_ipus(self) -> dict[str, dict[str, int]]:
        return {"total": {"used": 4, "available": 28}}

    async def count_each(self, _max_ipus: int) -> list[ControllerCapacity]:
        silent = ControllerCapacity("v1:8090", "rack=v1", message="down")
        return [ControllerCapacity("v0:8090", "rack=v0", IpuCount(32, 28, 16)), silent]

    async def count_partitions(self, size: int) -> PartitionCapacity:
        return PartitionCapacity(True, 28 // size)


def make_service() -> Service:
    entries = {partition_name(build_request()): ENTRY}
    proxy: Any = SimpleNamespace(
        capacity=Capacity(),
        intents=Intents(),
        store=SimpleNamespace(entries=entries, find_entry=entries.get, unreadable={"p-odd": "no JSON"}),
        limits=PartitionLimits(),
        metrics=ProxyMetrics(),
        explain_unhealthy=str,
    )
    return make_app(proxy, Accounts(), allowed=frozenset({("muster", "muster-operator")}))


# what depends on two fields at once is no matter of a schema; that tokens are asked for is tested with the routes
LEFT_OUT = [positive_data_acceptance, ignored_auth, missing_required_header]
schema = schemathesis.openapi.from_asgi("/openapi.json", make_service())


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_the_document_says(case: Case) -> None:
    """As the operator."""
    case.headers = {**(case.headers or {}), "authorization": "Bearer operators"}
    case.call_and_validate(excluded_checks=LEFT_OUT)
