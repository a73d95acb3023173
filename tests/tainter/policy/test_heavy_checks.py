"""policy.yaml's section ``testing``: what it takes, and what is told when it says something else."""

from pathlib import Path

import pytest

from muster_tainter.policy.file import LivePolicy, PolicyError, parse_policy
from muster_tainter.policy.sections.heavy_checks import AtOnce


def test_without_the_section_a_twentieth_of_the_fleet_tests_at_once_and_every_node_within_a_week() -> None:
    policy = parse_policy("rules: []")
    rules = policy.testing
    assert (rules.at_once.of(15_000), rules.at_once.of(1), rules.coverage, rules.pause) == (750, 1, 604_800.0, 600.0)
    assert (policy.pools, policy.label_keys) == ((), frozenset())


def test_all_of_it() -> None:
    policy = parse_policy("""
rules: []
testing:
  atOnce: 10
  coverage: 36h
  pause: 90s
pools:
  - name: h100
    selector: {matchLabels: {example.com/gpu: h100, zone: a}}
    domain: example.com/rack
    testing:
      atOnce: 25%
      postFlight: [pciebw]
      preFlight: pciebw
  - {name: rest, selector: {}}
""")
    rules = policy.testing
    assert (rules.at_once, rules.coverage, rules.pause) == (AtOnce(10), 129_600.0, 90.0)
    assert policy.label_keys == {"example.com/gpu", "example.com/rack", "zone"}
    labels = {"example.com/gpu": "h100", "zone": "a", "other": "x"}
    pool = policy.pool_of(labels)
    assert pool is not None
    testing = pool.testing
    assert (pool.name, testing.at_once, testing.post_flight, testing.pre_flight) == (
        "h100", AtOnce(percent=25), ("pciebw",), ("pciebw",)
    )  # fmt: skip
    assert [each.name for each in policy.pools_of(labels)] == ["h100", "rest"]
    other = policy.pool_of({"zone": "a"})
    assert other is not None
    assert other.name == "rest"


BAD: list[tuple[str, ...]] = [
    ("{atOnce: -1}", "testing.atOnce: -1:", "100000", "%"),
    ("{atOnce: 101%}", 'testing.atOnce: "101%":'),
    ("{atOnce: true}", "testing.atOnce: true:"),
    ("{atOnce: 2.5}", "testing.atOnce: 2.5:"),
    ("{coverage: 7}", "testing.coverage: 7:", "1 s", "366", "90s"),
    ("{coverage: 0d}", 'testing.coverage: "0d":'),
    ("{coverage: 1.5}", "testing.coverage: 1.5:"),
    ("{pause: 400d}", 'testing.pause: "400d":'),
    ("{cap: 3}", "testing.cap:", "atOnce", "coverage", "pause"),
    ("3", "testing: 3:"),
]  # fmt: skip


BAD_POOLS: list[tuple[str, ...]] = [
    ("[{name: a, selector: {}, testing: {atOnce: x}}]", 'pools[0].testing.atOnce: "x":'),
    ("[{name: a}]", "pools[0].selector:"),
    ("[{name: '', selector: {}}]", 'pools[0].name: "":'),
    ("[{name: a, selector: {}, testing: {preflight: []}}]",
     "pools[0].testing.preflight:", "atOnce", "postFlight", "preFlight"),
    ("[{name: a, selector: {matchExpressions: []}}]", "pools[0].selector.matchExpressions:", "matchLabels"),
    ("[{name: a, selector: {matchLabels: [x]}}]", "pools[0].selector.matchLabels: [\"x\"]:"),
    ("[{name: a, selector: {matchLabels: {a b: c}}}]", "pools[0].selector.matchLabels", "'a b'"),
    ("[{name: a, selector: {matchLabels: {a: b c}}}]", "pools[0].selector.matchLabels", "'b c'"),
    ("[{name: a, selector: {}, domain: a b}]", 'pools[0].domain: "a b":'),
    ("[{name: a, selector: {}, budget: {tainted: 200%}}]", 'pools[0].budget.tainted: "200%":'),
    ("[{name: a, selector: {}, budget: {rate: {nodes: 1}}}]", "pools[0].budget.rate.within:"),
    ("[{name: a, selector: {}, budget: {rat: 1}}]", "pools[0].budget.rat:", "healthyPerDomain", "perDomain"),
    ("[{name: a, selector: {}, testing: {postFlight: [PCIe]}}]",
     "pools[0].testing.postFlight: [\"PCIe\"]:", "'PCIe'"),
    ("[{name: a, selector: {}, testing: {preFlight: [x, x]}}]", 'pools[0].testing.preFlight: ["x", "x"]:'),
    ("[{name: a, selector: {}}, {name: a, selector: {}}]",
     'pools[1].name: "a":', "pools[0]"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD_POOLS, ids=lambda case: case[0])
def test_an_error_in_a_pool_says_where_too(case: tuple[str, ...]) -> None:
    text, *facts = case
    with pytest.raises(PolicyError) as caught:
        parse_policy(f"{{rules: [], pools: {text}}}")
    assert str(caught.value).startswith("policy.yaml: pools")
    assert [fact for fact in facts if fact not in str(caught.value)] == []


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_an_error_says_where_what_and_what_is_allowed(case: tuple[str, ...]) -> None:
    text, *facts = case
    with pytest.raises(PolicyError) as caught:
        parse_policy(f"{{rules: [], testing: {text}}}")
    assert str(caught.value).startswith("policy.yaml: testing")
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def test_another_section_is_another_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: []")
    live = LivePolicy(file)
    file.write_text("{rules: [], testing: {atOnce: 3}}")
    assert live.reload()
    file.write_text("{rules: [], testing: {atOnce: three}}")
    assert not live.reload()
    assert live.current.testing.at_once == AtOnce(3)
