"""policy.yaml's section ``testing``: what it takes, and what is told when it says something else."""

from pathlib import Path

import pytest

from muster_tainter.policyfile import LivePolicy, PolicyError, parse_policy
from muster_tainter.testing import AtOnce


def test_without_the_section_a_twentieth_of_the_fleet_tests_at_once_and_every_node_within_a_week() -> None:
    rules = parse_policy("rules: []").testing
    assert (rules.at_once.of(15_000), rules.at_once.of(1), rules.coverage, rules.pause) == (750, 1, 604_800.0, 600.0)
    assert (rules.pools, rules.label_keys) == ((), frozenset())


def test_all_of_it() -> None:
    rules = parse_policy("""
rules: []
testing:
  atOnce: 10
  coverage: 36h
  pause: 90s
  pools:
    - name: h100
      selector: {matchLabels: {example.com/gpu: h100, zone: a}}
      atOnce: 25%
      postFlight: [pciebw]
      preFlight: pciebw
    - {name: rest, selector: {}}
""").testing
    assert (rules.at_once, rules.coverage, rules.pause) == (AtOnce(10), 129_600.0, 90.0)
    assert rules.label_keys == {"example.com/gpu", "zone"}
    pool = rules.pool_of({"example.com/gpu": "h100", "zone": "a", "other": "x"})
    assert pool is not None
    assert (pool.name, pool.at_once, pool.post_flight, pool.pre_flight) == (
        "h100", AtOnce(percent=25), ("pciebw",), ("pciebw",)
    )  # fmt: skip
    other = rules.pool_of({"zone": "a"})
    assert other is not None
    assert other.name == "rest"


BAD: list[tuple[str, str]] = [
    ("{atOnce: -1}", 'testing.atOnce: -1: expected a number of nodes, 0 to 100000, or a share such as "5%"'),
    ("{atOnce: 101%}", 'testing.atOnce: "101%": expected a number of nodes'),
    ("{atOnce: true}", "testing.atOnce: true: expected a number of nodes"),
    ("{atOnce: 2.5}", "testing.atOnce: 2.5: expected a number of nodes"),
    ("{coverage: 7}", "testing.coverage: 7: expected a time of 1 s to 366 days, such as 90s, 10m, 2h or 7d"),
    ("{coverage: 0d}", 'testing.coverage: "0d": expected a time'),
    ("{coverage: 1.5}", "testing.coverage: 1.5: expected a time"),
    ("{pause: 400d}", 'testing.pause: "400d": expected a time'),
    ("{cap: 3}", "testing.cap: unknown key: expected atOnce, coverage, pause or pools"),
    ("{pools: [{name: a, selector: {}, atOnce: x}]}", 'testing.pools[0].atOnce: "x": expected a number of nodes'),
    ("{pools: [{name: a}]}", "testing.pools[0].selector: missing"),
    ("{pools: [{name: '', selector: {}}]}", 'testing.pools[0].name: "": expected a text that is not empty'),
    ("{pools: [{name: a, selector: {}, preflight: []}]}",
     "testing.pools[0].preflight: unknown key: expected atOnce, name, postFlight, preFlight or selector"),
    ("{pools: [{name: a, selector: {matchExpressions: []}}]}",
     "testing.pools[0].selector.matchExpressions: unknown key: expected matchLabels"),
    ("{pools: [{name: a, selector: {matchLabels: [x]}}]}", "testing.pools[0].selector.matchLabels: [\"x\"]: expected"),
    ("{pools: [{name: a, selector: {matchLabels: {a b: c}}}]}", "'a b': expected a label key"),
    ("{pools: [{name: a, selector: {matchLabels: {a: b c}}}]}", "'b c': expected a label value"),
    ("{pools: [{name: a, selector: {}, postFlight: [PCIe]}]}", "pools[0].postFlight: [\"PCIe\"]: 'PCIe': expected"),
    ("{pools: [{name: a, selector: {}, preFlight: [x, x]}]}", "expected each check once"),
    ("{pools: [{name: a, selector: {}}, {name: a, selector: {}}]}",
     'pools[1].name: "a": expected a name of its own: pools[0] has it'),
    ("3", "testing: 3: expected a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD)
def test_an_error_says_where_what_and_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(f"{{rules: [], testing: {text}}}")
    assert str(caught.value).startswith("policy.yaml: testing")
    assert said in str(caught.value)


def test_another_section_is_another_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: []")
    live = LivePolicy(file)
    file.write_text("{rules: [], testing: {atOnce: 3}}")
    assert live.reload()
    file.write_text("{rules: [], testing: {atOnce: three}}")
    assert not live.reload()
    assert live.current.testing.at_once == AtOnce(3)
