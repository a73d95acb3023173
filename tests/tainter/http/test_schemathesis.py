"""What the tainter's OpenAPI document says is true: schemathesis makes requests of it, right ones and wrong ones.

It runs beside the other tests: schemathesis makes up its requests while tests are collected, which takes each of the
processes that share the others a second.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import ignored_auth, missing_required_header, positive_data_acceptance
from tests.tainter.http.service import bare_service

pytestmark = pytest.mark.beside
# what depends on two fields at once is no matter of a schema; that tokens are asked for is tested with the routes
LEFT_OUT = [positive_data_acceptance, ignored_auth, missing_required_header]
schema = schemathesis.openapi.from_asgi("/openapi.json", bare_service())


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_the_document_says(case: Case) -> None:
    case.call_and_validate(excluded_checks=LEFT_OUT)
