"""Bad input: each parser gives a result or says that it cannot; nothing else is raised."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, any_json, huge, mangled, replaced
from tests.checks.graphcore.sample import samples

from muster_checks.graphcore.tools import (
    attributes,
    device_list,
    health,
    host_sync,
    ipu_traffic,
    links,
    monitor,
    partitions,
    poplar,
)
from muster_checks.pciebw import graphcore

PARSERS = {
    module.__name__.rpartition(".")[2]: module.parse
    for module in (
        attributes,
        health,
        host_sync,
        graphcore,
        ipu_traffic,
        links,
        device_list,
        monitor,
        partitions,
        poplar,
    )
}
BEGINNINGS = (
    b"Device Info:\n  id: 0\n  link width: ",
    b"Graphcore device listing:\n-+- Id: [0], target: [Fabric], IPU-M host: [",
    b"|  gc-monitor   |\n| ID | Type |\n| 0",
    b'{"hosts": {"',
    b"o Using device Id - 0\no Result - ",
    b" Partition | State\n p",
    b"recoverable_runtime_error: [Recovery action: ",
)


def _fed(parse, text):
    try:
        parse(text)
    except UNMEASURED:
        return


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_what_tools_print_on_bad_days_and_others_samples(parse):
    for text in TEXTS:
        _fed(parse, text)
    for path in samples():
        _fed(parse, path.read_bytes())
        for text in mangled(path.read_bytes()):
            _fed(parse, text)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_hundred_megabytes_that_begin_like_the_real_thing(beginning):
    text = huge(beginning)
    for parse in PARSERS.values():
        _fed(parse, text)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_a_megabyte_of_lines_takes_no_time_worth_naming(parse):
    for line in (b"\n", b" \n", b"|\n", b"| ID |\n", b"a: \n", b"Device:\n", b"-+- a: [\n", b"{\n", b"[\n"):
        _fed(parse, line * ((1 << 20) // len(line)))


@settings(max_examples=60, deadline=None)
@given(text=st.binary(max_size=400), beginning=st.sampled_from(BEGINNINGS))
def test_bytes_at_random(text, beginning):
    for parse in PARSERS.values():
        _fed(parse, text)
        _fed(parse, beginning + text + b"\n")


@settings(max_examples=60, deadline=None)
@given(document=any_json())
def test_json_at_random(document):
    text = json.dumps(document).encode()
    for parse in PARSERS.values():
        _fed(parse, text)


@pytest.mark.parametrize("path", [path for path in samples() if path.suffix == ".json"], ids=lambda path: path.name)
def test_each_value_replaced_by_each_that_stands_for_none(path):
    for document in replaced(json.loads(path.read_bytes())):
        text = json.dumps(document).encode()
        for parse in PARSERS.values():
            _fed(parse, text)


@pytest.mark.parametrize(
    "document",
    [
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"[" * 900 + b"]" * 900,
        b'{"from_pcie_id": {"from_pcie_id": "1", "channels": [{"channels": []}]}, "channels": {"from": 1}}',
    ],
)
def test_documents_nested_to_the_limit(document):
    for parse in PARSERS.values():
        _fed(parse, document)
