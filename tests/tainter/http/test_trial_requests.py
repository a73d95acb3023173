"""The body of POST /api/trials/pvc: what is taken, and how each mistake is told."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.http.test_volume_trials import ASKED

from muster_kube.process.settings import SettingsError
from muster_tainter.http.volume_trials import HttpRefusal, read_trial_request
from muster_tainter.settings import load


def test_a_request_names_what_the_check_takes():
    asked = read_trial_request(json.dumps(ASKED).encode())
    assert (asked.node, asked.storage_class, asked.size_mib, asked.image) == ("node-7", "fast", 8, "busybox")
    assert (asked.bind_timeout_s, asked.write_timeout_s) == (30.0, 40.5)
    assert read_trial_request(b'{"node": "n"}').size_mib == 16, "what is left out is the check's default"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", r"body: .*Invalid JSON"),
        (b"[1]", r"body: .*object"),
        (b"{}", r"body\.node: Field required"),
        ({"node": "No de"}, r"body\.node: 'No de': .*pattern"),
        ({"sizeMib": "8"}, r"body\.sizeMib: '8': .*valid integer"),
        ({"sizeMib": True}, r"body\.sizeMib: True: .*valid integer"),
        ({"sizeMib": 0}, r"body\.sizeMib: 0: .*greater than or equal to 1"),
        ({"bindTimeoutSeconds": 601}, r"body\.bindTimeoutSeconds: 601: .*less than or equal to 600"),
        ({"image": ""}, r"body\.image: '': .*at least 1"),
        ({"bind_timeout_s": 3}, r"body\.bind_timeout_s: 3: unknown key; allowed: storageClass, .*writeTimeoutSeconds"),
        ({f"x{n}": n for n in range(50)}, r"; and 45 more$"),
    ],
)
def test_a_bad_request_is_told_field_value_and_what_is_allowed(body: Any, said: str):
    raw = body if isinstance(body, bytes) else json.dumps(ASKED | body).encode()
    with pytest.raises(HttpRefusal, match=said) as refused:
        read_trial_request(raw)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 2000


@given(st.one_of(st.binary(max_size=200), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists)))
def test_no_request_breaks_its_reader(anything: Any):
    raw = anything if isinstance(anything, bytes) else json.dumps({"node": anything, "sizeMib": anything}).encode()
    with contextlib.suppress(HttpRefusal):
        read_trial_request(raw)


def test_where_trials_are_made_is_a_setting_with_a_namespaces_name():
    assert load(None, {}, {"MUSTER_TAINTER_TRIALS_NAMESPACE": "trials"}).trials_namespace == "trials"
    with pytest.raises(SettingsError, match="MUSTER_TAINTER_TRIALS_NAMESPACE: 'A b'"):
        load(None, {}, {"MUSTER_TAINTER_TRIALS_NAMESPACE": "A b"})
