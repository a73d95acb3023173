"""Where a job's pods may go: nodes that reach their IPUs, and healthy ones only."""

from typing import Any

import pytest
from tests.operator.plan.job_factory import make_entry, make_job, template
from tests.wording.facts import missing_facts

from muster_operator.job.snapshot import JobSetup
from muster_operator.resources import pods
from muster_operator.resources.placement import conflict, node_affinity, node_selector, tolerations

NOT_FAULTY = {"key": "muster.dev/faulty", "operator": "DoesNotExist"}
NOT_SPARE = {"key": "muster.dev/role", "operator": "NotIn", "values": ["spare"]}
HEALTHY = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": "muster.dev/health", "operator": "NotIn", "values": ["fail", "warn"]}]},
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
EVERYTHING = {"operator": "Exists"}


def zone(*values: str) -> dict[str, Any]:
    return {"key": "zone", "operator": "In", "values": list(values)}


def test_faulty_nodes_are_out_and_ailing_ones_come_last() -> None:
    assert node_affinity({}, tolerate=False) == {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [NOT_FAULTY, NOT_SPARE]}]},
        PREFERRED: [HEALTHY],
    }


def test_required_affinity_is_kept_and_every_term_excludes_faulty_nodes() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    users = {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [zone("a")]}, {"matchFields": fields}]},
        PREFERRED: [{"weight": 3, "preference": {"matchExpressions": [zone("b")]}}],
    }
    assert node_affinity(users, tolerate=False) == {
        REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [zone("a"), NOT_FAULTY, NOT_SPARE]},
                {"matchFields": fields, "matchExpressions": [NOT_FAULTY, NOT_SPARE]},
            ]
        },
        PREFERRED: [{"weight": 3, "preference": {"matchExpressions": [zone("b")]}}, HEALTHY],
    }


def test_a_job_that_moved_prefers_released_spares_to_other_healthy_nodes() -> None:
    preferred = node_affinity({}, tolerate=False, moved=True)[PREFERRED]
    [released] = [each for each in preferred if each != HEALTHY]
    assert released["preference"]["matchExpressions"] == [
        {"key": "muster.dev/role", "operator": "In", "values": ["replacement"]}
    ]
    assert released["weight"] < HEALTHY["weight"]


def test_nodes_to_avoid_are_out_of_every_alternative_one_requirement_each() -> None:
    avoided = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("n1", "n2")]
    for tolerate, ours in ((True, [NOT_SPARE]), (False, [NOT_FAULTY, NOT_SPARE])):
        found = node_affinity({}, tolerate=tolerate, avoid=["n1", "n2"])[REQUIRED]
        assert found == {"nodeSelectorTerms": [{"matchExpressions": ours, "matchFields": avoided}]}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]
    users = {REQUIRED: {"nodeSelectorTerms": [{"matchFields": fields}, {}]}}
    assert node_affinity(users, tolerate=True, avoid=["n1", "n2"])[REQUIRED] == {
        "nodeSelectorTerms": [{"matchFields": [*fields, *avoided], "matchExpressions": [NOT_SPARE]}, {}]
    }


def test_a_term_that_matches_no_node_still_matches_none() -> None:
    users = {REQUIRED: {"nodeSelectorTerms": [{}, {"matchExpressions": [zone("a")]}]}}
    assert node_affinity(users, tolerate=False)[REQUIRED]["nodeSelectorTerms"][0] == {}


def test_a_job_may_ask_for_faulty_nodes_too() -> None:
    job = make_job(healthPolicy={"tolerateFaulty": True})
    spec = pods.build_worker(job, 0, make_entry(job), 0, JobSetup())["spec"]
    required = spec["affinity"]["nodeAffinity"][REQUIRED]
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [NOT_SPARE]}]}, "but not for spares"
    assert spec["affinity"]["nodeAffinity"][PREFERRED] == [HEALTHY]
    assert spec["tolerations"] == [{"key": "muster.dev/faulty", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("users", "found"),
    [
        ([], []),
        ([{"key": "gpu", "operator": "Exists"}], [{"key": "gpu", "operator": "Exists"}]),
        ([{"key": "muster.dev/faulty", "operator": "Exists"}], []),
        ([{"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}, {"key": "gpu"}], [{"key": "gpu"}]),
        # the affinity above keeps it off; what it says of the taints of others is kept
        ([EVERYTHING], [EVERYTHING]),
    ],
)
def test_our_taints_are_not_tolerated_by_name(users: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    assert tolerations(users, JobSetup(), tolerate=False) == found


def test_tolerations_of_other_keys_that_are_ours_by_setting_go_as_well() -> None:
    setup = JobSetup(our_taints=("muster.dev/faulty", "trainy.konduktor.ai/faulty"))
    users = [{"key": "trainy.konduktor.ai/faulty", "operator": "Exists"}]
    assert tolerations(users, setup, tolerate=False) == []
    assert tolerations(users, setup, tolerate=True) == [
        {"key": "trainy.konduktor.ai/faulty", "operator": "Exists"},
        {"key": "muster.dev/faulty", "operator": "Exists"},
    ]


def test_a_template_that_tolerates_everything_is_kept_off_faulty_nodes() -> None:
    job = make_job(pods=template(tolerations=[EVERYTHING]))
    for body in (
        pods.build_worker(job, 0, make_entry(job), 0, JobSetup()),
        pods.build_launcher(job, [make_entry(job)], 0, JobSetup()),
    ):
        terms = body["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert all(NOT_FAULTY in term["matchExpressions"] for term in terms)


class TestNodeSelector:
    """Behaviour 25."""

    def test_25_pods_carry_the_controllers_label_and_the_templates(self) -> None:
        job = make_job(pods=template(nodeSelector={"disk": "fast"}))
        for body in (
            pods.build_worker(job, 0, make_entry(job), 0, JobSetup()),
            pods.build_launcher(job, [make_entry(job)], 0, JobSetup()),
        ):
            assert body["spec"]["nodeSelector"] == {"ipunode": "node1", "disk": "fast"}

    def test_25_a_controller_without_a_label_adds_none(self) -> None:
        job = make_job()
        assert "nodeSelector" not in pods.build_worker(job, 0, make_entry(job, selector=""), 0, JobSetup())["spec"]

    def test_25_a_launcher_of_partitions_on_several_controllers_may_go_anywhere(self) -> None:
        assert node_selector({}, ["ipunode=a", "ipunode=b"]) == {}
        assert node_selector({"disk": "fast"}, ["ipunode=a", "ipunode=a"]) == {"ipunode": "a", "disk": "fast"}

    @pytest.mark.parametrize(
        ("users", "facts"),
        [
            ({}, ()),
            ({"disk": "fast"}, ()),
            ({"ipunode": "node1"}, ()),
            ({"ipunode": "node2"}, ("workers.template", "ipunode=node2", "ipunode=node1")),
        ],
    )
    def test_25_a_conflict_names_both_values(self, users: dict[str, str], facts: tuple[str, ...]) -> None:
        said = conflict(users, "ipunode=node1")
        assert bool(said) == bool(facts)
        assert not missing_facts(said, *facts)
        assert conflict(users, "") == ""
