"""The body of POST /api/trials/pvc: what is taken, and how each mistake is told."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tainter.http.service import ASKED, bare_service

from muster_kube.process.settings import SettingsError
from muster_tainter.http.volume_trials import TrialRequest
from muster_tainter.settings import load


def test_a_request_names_what_the_check_takes():
    asked = TrialRequest.model_validate(ASKED)
    assert (asked.node, asked.storage_class, asked.size_mib, asked.image) == ("node-7", "fast", 8, "busybox")
    assert (asked.bind_timeout_s, asked.write_timeout_s) == (30.0, 40.5)
    assert TrialRequest.model_validate({"node": "n"}).size_mib == 16, "what is left out is the check's default"


async def post(body: bytes) -> httpx2.Response:
    headers = {"authorization": "Bearer t"}
    transport = httpx2.ASGITransport(app=bare_service())
    async with httpx2.AsyncClient(transport=transport, base_url="http://tainter") as http:
        return await http.post("/api/trials/pvc", content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (b"", ["body"]),
        (b"{", ["body", "JSON"]),
        (b"\xff", ["body"]),
        (b"[" * 4000, ["body"]),
        (b"[1]", ["body"]),
        (b"{}", ["body.node"]),
        ({"node": "No de"}, ["body.node", "'No de'"]),
        ({"sizeMib": "8"}, ["body.sizeMib", "'8'", "integer"]),
        ({"sizeMib": True}, ["body.sizeMib", "True", "integer"]),
        ({"sizeMib": 0}, ["body.sizeMib", " 0", "1"]),
        ({"bindTimeoutSeconds": 601}, ["body.bindTimeoutSeconds", "601", "600"]),
        ({"image": ""}, ["body.image", "''"]),
        ({"bind_timeout_s": 3}, ["body.bind_timeout_s", "3", "storageClass", "writeTimeoutSeconds"]),
        ({f"x{n}": n for n in range(50)}, ["and 45 more"]),
    ],
)
async def test_a_bad_request_is_told_field_value_and_what_is_allowed(body: Any, facts: list[str]):
    refused = await post(body if isinstance(body, bytes) else json.dumps(ASKED | body).encode())
    assert (refused.status_code, refused.json()["reason"]) == (400, "BadRequest")
    message = refused.json()["message"]
    assert [fact for fact in facts if fact not in message] == []
    assert len(message) < 2000


@settings(max_examples=50, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=8),
        st.dictionaries(st.text(max_size=8), st.none(), max_size=3),
    )
)
async def test_no_request_breaks_its_reader(anything: Any):
    document = anything if isinstance(anything, dict) else {"node": anything, "sizeMib": anything}
    raw = anything if isinstance(anything, bytes) else json.dumps(document).encode()
    assert (await post(raw)).status_code == 400


def test_where_trials_are_made_is_a_setting_with_a_namespaces_name():
    assert load(None, {}, {"MUSTER_TAINTER_TRIALS_NAMESPACE": "trials"}).trials_namespace == "trials"
    with pytest.raises(SettingsError, match="MUSTER_TAINTER_TRIALS_NAMESPACE: 'A b'"):
        load(None, {}, {"MUSTER_TAINTER_TRIALS_NAMESPACE": "A b"})
