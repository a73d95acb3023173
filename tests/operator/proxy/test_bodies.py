"""The bodies that the proxy documents are those that the operator sends."""

import msgspec

from muster_operator.job.partition_api import PartitionRequest
from muster_operator.proxy.bodies import PartitionBody


def test_the_operators_request_is_read_whole() -> None:
    sent = PartitionRequest(job="uid-1", namespace="ml", name="train", instance=1, attempt=2, size=4, gcds=2)
    assert PartitionBody.model_validate_json(msgspec.json.encode(sent)).request() == sent


def test_its_names_are_those_of_the_document() -> None:
    fields = msgspec.structs.fields(PartitionRequest)
    assert {each.encode_name for each in fields} == {
        each.alias or name for name, each in PartitionBody.model_fields.items()
    }
