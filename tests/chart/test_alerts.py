"""The alerts as the chart renders them: the same rules as the file, for the parts that run."""

import re
from typing import Any

import pytest
import yaml
from tests.chart.helm_render import CHART, Helm, Object, Refused

API = "monitoring.coreos.com/v1/PrometheusRule"
RULES: Object = yaml.safe_load((CHART / "files/alerts.yaml").read_text())


def rules() -> dict[str, Object]:
    return {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}


def test_the_chart_has_them_where_the_cluster_knows_such_rules(helm: Helm) -> None:
    assert not helm.template().has("PrometheusRule", "muster")
    made = helm.template(apis=[API]).one("PrometheusRule", "muster")
    assert made["spec"] == RULES
    assert made["metadata"]["namespace"] == "autopilot"
    assert helm.template(values={"alerts": {"enabled": "always"}}).has("PrometheusRule", "muster")
    assert not helm.template(values={"alerts": {"enabled": "never"}}, apis=[API]).has("PrometheusRule", "muster")


def test_labels_the_runbooks_place_and_what_is_left_out_are_values(helm: Helm) -> None:
    values = {
        "alerts": {
            "enabled": "always",
            "labels": {"release": "prometheus"},
            "ruleLabels": {"team": "hpc"},
            "runbookUrl": "https://wiki.example.com/muster/",
            "disabled": ["MusterAgentsNotScraped", "MusterVipuProxyAway"],
        },
    }
    made = helm.template(values=values).one("PrometheusRule", "muster")
    assert made["metadata"]["labels"]["release"] == "prometheus"
    found = {rule["alert"]: rule for group in made["spec"]["groups"] for rule in group["rules"]}
    assert found.keys() == rules().keys() - set(values["alerts"]["disabled"])
    for name, rule in found.items():
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example.com/muster/{name}.md"
        assert rule["labels"] == rules()[name]["labels"] | {"team": "hpc"}
        assert rule["expr"] == rules()[name]["expr"]


def test_there_are_alerts_for_the_parts_that_run_only(helm: Helm) -> None:
    parts = {"controller": {"enabled": False}, "vipuProxy": {"enabled": False}}
    made = helm.template(values=parts, apis=[API]).one("PrometheusRule", "muster")
    assert [group["name"] for group in made["spec"]["groups"]] == ["muster-agent", "muster-tainter"]
    parts |= {"agent": {"enabled": False}, "tainter": {"enabled": False}}
    assert not helm.template(values=parts, apis=[API]).has("PrometheusRule", "muster")


@pytest.mark.parametrize(
    ("alerts", "said"),
    [
        ({"disabled": ["MusterNothing"]}, '"MusterNothing": expected one of MusterNodeNotRepaired, '),
        ({"enabled": "yes"}, "alerts.enabled"),
        ({"labels": {"a": 1}}, "alerts.labels"),
    ],
    ids=["no such alert", "no such choice", "a label that is no text"],
)
def test_what_the_values_do_not_know_is_refused(helm: Helm, alerts: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=re.escape(said)):
        helm.template(values={"alerts": {"enabled": "always"} | alerts})
