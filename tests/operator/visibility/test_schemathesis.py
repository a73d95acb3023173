"""What the extender's OpenAPI document says is true: schemathesis makes requests of it, right ones and wrong ones.

It runs beside the other tests: schemathesis makes up its requests while tests are collected, which takes each of the
processes that share the others a second.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import positive_data_acceptance
from tests.operator.visibility.capacities import Proxy, capacity_of, controller, node

from muster_kube.http.service import Service
from muster_operator.visibility.extender_app import extender_app

pytestmark = pytest.mark.beside


def make_service() -> Service:
    capacity = capacity_of(Proxy(controller("a", 4), controller("b", None)))
    asyncio.run(capacity.refresh())
    cluster: Any = SimpleNamespace(
        nodes=SimpleNamespace(store={"a1": node("a1", "a")}), tracker=SimpleNamespace(of_job=lambda _uid: {})
    )
    return extender_app(cluster, capacity, 64)


schema = schemathesis.openapi.from_asgi("/openapi.json", make_service())


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_the_document_says(case: Case) -> None:
    # of names of nodes, only the cluster knows which are right
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
