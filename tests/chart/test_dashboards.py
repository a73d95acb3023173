"""The dashboards are in the chart, as ConfigMaps that Grafana's sidecar takes."""

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from tests.chart.helm_render import CHART, Helm, Refused, Rendered

GRAFANA = CHART.parents[1] / "grafana"
NAMES = sorted(path.name for path in GRAFANA.glob("*.json"))


def maps(rendered: Rendered) -> dict[str, dict[str, str]]:
    """Dashboards by the ConfigMap's name."""
    found = rendered.kind("ConfigMap")
    return {name: each["data"] for name, each in found.items() if name.endswith("-dashboard")}


def test_each_dashboard_is_a_config_map_with_the_sidecars_label(helm: Helm) -> None:
    rendered = helm.template()
    found = maps(rendered)
    assert len(NAMES) == 6
    assert sorted(file for data in found.values() for file in data) == NAMES
    for name, data in found.items():
        meta = rendered.one("ConfigMap", name)["metadata"]
        assert (meta["namespace"], meta["labels"]["grafana_dashboard"]) == ("autopilot", "1")
        [(file, text)] = data.items()
        assert json.loads(text) == json.loads((GRAFANA / file).read_text())


def test_where_they_are_and_how_they_are_found_can_be_said(helm: Helm) -> None:
    said = {"namespace": "monitoring", "labels": {"boards": "yes"}, "annotations": {"grafana_folder": "Muster"}}
    rendered = helm.template(values={"grafana": {"dashboards": said}})
    for name in maps(rendered):
        meta = rendered.one("ConfigMap", name)["metadata"]
        assert (meta["namespace"], meta["annotations"]) == ("monitoring", {"grafana_folder": "Muster"})
        assert (meta["labels"]["boards"], meta["labels"]["grafana_dashboard"]) == ("yes", "1")


def test_none_are_made_where_nobody_wants_them(helm: Helm) -> None:
    assert maps(helm.template(values={"grafana": {"dashboards": {"enabled": False}}})) == {}


@pytest.mark.parametrize(
    "said", [{"enabled": "maybe"}, {"labels": {"a": 1}}, {"namespace": "No Name"}, {"folder": "x"}]
)
def test_a_wrong_value_is_named(helm: Helm, said: dict[str, object]) -> None:
    with pytest.raises(Refused, match=rf"grafana\.dashboards.*{next(iter(said))}"):
        helm.template(values={"grafana": {"dashboards": said}})


def test_a_packed_chart_has_them(helm: Helm, tmp_path: Path) -> None:
    helm.run("package", str(CHART), "--destination", str(tmp_path))
    [packed] = tmp_path.glob("*.tgz")
    with tarfile.open(packed) as archive:
        assert {f"{CHART.name}/files/dashboards/{name}" for name in NAMES} <= set(archive.getnames())


def test_agents_are_scraped_with_their_nodes_name(helm: Helm) -> None:
    monitors = helm.template(apis=["monitoring.coreos.com/v1/PodMonitor"]).kind("PodMonitor")
    [endpoint] = monitors["muster-agent"]["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    assert "relabelings" not in yaml.safe_dump(monitors["muster-tainter"])
