"""What the simulator's OpenAPI document says is true: schemathesis makes requests of it, right ones and wrong ones.

It runs beside the other tests: schemathesis makes up its requests while tests are collected, which takes each of the
processes that share the others a second.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import positive_data_acceptance

from muster_operator.vipu.simulator.clocked_fleet import ClockedFleet
from muster_operator.vipu.simulator.fleet import SimulatedFleet
from muster_operator.vipu.simulator.routes import make_app

pytestmark = pytest.mark.beside
schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(ClockedFleet(SimulatedFleet(ipus=16), lambda: 0.0)))


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_the_document_says(case: Case) -> None:
    # what depends on two fields at once is no matter of a schema
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
