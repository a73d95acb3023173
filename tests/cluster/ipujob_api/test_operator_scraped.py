"""The real Prometheus, with the account and the command of the guide, at the operator's guarded metrics."""

import asyncio
from pathlib import Path

from tests.chart.helm_render import CHART, Helm
from tests.cluster.ipujob.operator_bed import (
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    until,
)
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

from muster_sandbox.prometheus import Prometheus, find_programs, scrape_config

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
READER = "gc-metrics-reader"  # of release gc
ACCOUNT = "prometheus"


async def test_prometheus_gets_403_until_the_guides_line_is_typed_and_then_what_the_alerts_ask_for(
    bed: Bed, tmp_path: Path
) -> None:
    (line,) = commands_of_test(__file__)
    names = {"NAMESPACE": bed.namespace, "ACCOUNT": ACCOUNT, "RELEASE-metrics-reader": READER}
    guide = CommandRunner({line}, names, {})
    await bed.start()
    assert bed.operator is not None
    assert bed.proxy is not None
    admin = bed.control_plane.admin
    admin.create(ROLES, Helm(tmp_path / "helm").template().one("ClusterRole", READER))
    token = bed.token_for(ACCOUNT)
    (tmp_path / "token").write_text(token)
    guarded = {
        "scheme": "https",
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "tls_config": {"insecure_skip_verify": True},
    }
    scraped = [
        scrape_config("operator", bed.operator.told["metrics"], more=guarded, namespace=bed.namespace),
        scrape_config("vipu-proxy", bed.proxy.url.removeprefix("http://"), namespace=bed.namespace),
    ]
    rules = [CHART / "files/alerts.yaml"]
    try:
        with Prometheus(find_programs(print), tmp_path / "prometheus", scraped, rules=rules) as prometheus:

            async def refused() -> bool:
                told = [each["lastError"] for each in await asyncio.to_thread(prometheus.targets)]
                return any("403 Forbidden" in each for each in told)

            await until(refused, "Prometheus is refused")
            assert await asyncio.to_thread(prometheus.query, "muster_operator_leader") == []

            assert READER in bed.kubectl("get", "clusterrole", "-l", "component=metrics-reader")
            bed.kubectl(*guide.words(line)[1:])
            await asyncio.to_thread(prometheus.until_scraped)
            (leads,) = await asyncio.to_thread(prometheus.until, "muster_operator_leader == 1")
            assert leads.labels["namespace"] == bed.namespace
            (left,) = await asyncio.to_thread(prometheus.until, "muster_operator_certificate_left_seconds > 0")
            assert 364 <= left.value / 86400 <= 366

            # a fault as it is in life makes the alert's own expression true
            await bed.fault(down=True)
            await bed.submit("serve", inference())
            pending = 'ALERTS{alertname="MusterVipuUnreachable"}'
            (alert,) = await asyncio.to_thread(prometheus.until, pending)
            assert alert.labels["severity"] == "critical"
            assert alert.labels["namespace"] == bed.namespace
            await bed.end_faults()
    finally:
        bed.kubectl("delete", "clusterrolebinding", "metrics", "--ignore-not-found")
        admin.delete(f"{ROLES}/{READER}")
