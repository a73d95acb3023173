"""Advertised IPUs and the extended scheduler: rights, hooks, and what the notes print."""

from typing import Any

import pytest
import yaml
from tests.chart.helm_render import Helm

MANAGER = "gc-ipu-operator-controller-manager"


@pytest.mark.parametrize(
    ("values", "form", "on_master"),
    [
        ({}, "none", False),
        ({"advertiseOnMaster": True}, "labels", True),
        ({"advertise": "resources", "advertiseOnMaster": True}, "resources", True),
        ({"advertise": "labels"}, "labels", False),
        ({"advertise": "none", "advertiseOnMaster": True}, "none", True),
    ],
)
def test_ipus_are_advertised_with_the_right_to_do_it_and_taken_away_at_an_uninstall(
    helm: Helm, values: dict[str, Any], form: str, on_master: bool
) -> None:
    rendered = helm.template(values={"ipuVisibility": values})
    settings = rendered.settings(MANAGER, "operator.yaml")
    assert (settings["ipu_visibility"], settings["advertise_on_master"]) == (form, on_master)
    roles = {
        name: each["rules"] for name, each in rendered.kind("ClusterRole").items() if name.startswith(f"{MANAGER}-ipu-")
    }
    expected = {
        "none": {},
        "labels": {f"{MANAGER}-ipu-labels": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]},
        "resources": {
            f"{MANAGER}-ipu-resources": [{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]
        },
    }
    assert roles == expected[form]
    job = "gc-ipu-operator-ipus-pre-delete"
    assert rendered.has("Job", job) == (form != "none")
    if form != "none":
        pod = rendered.pod("Job", job)
        steps = [each["args"] for each in (*pod["initContainers"], *pod["containers"])]
        assert steps[0][:2] == ["delete", f"deployment/{MANAGER}"]
        assert steps[1] == ["release", "--ipus", "--yes"]


@pytest.mark.parametrize(
    ("version", "api", "is_needed"),
    [
        ("1.20.2", "v1beta1", True),
        ("1.22.0", "v1beta2", True),
        ("1.24.0", "v1beta3", True),
        ("1.26.9", "v1", True),
        ("1.27.0", "v1", False),
    ],
)
def test_the_notes_print_what_the_scheduler_of_the_cluster_reads(
    helm: Helm, version: str, api: str, is_needed: bool
) -> None:
    values = {"extendedScheduler": {"enabled": True}, "vipuControllers": "a:1:k=v"}
    notes = helm.notes(values=values, version=version)
    assert "WARNINGS" not in notes
    before, text, after = notes.split("\n---\n")
    configuration = yaml.safe_load(text)
    assert configuration["apiVersion"] == f"kubescheduler.config.k8s.io/{api}"
    [extender] = configuration["extenders"]
    assert (extender["nodeCacheCapable"], extender["ignorable"], extender["enableHTTPS"]) == (True, True, True)
    assert "kubectl get service gc-ipu-operator-extender" in before
    assert ("gate" in before) != is_needed
    assert "/etc/kubernetes/manifests/kube-scheduler.yaml" in after
    assert "EXTENDED SCHEDULER" not in helm.notes(values={})
