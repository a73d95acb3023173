"""Which node is slow, by many pairs; and what a lone pair is worth."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.blame import find_culprits
from muster_checks.iperf.judge import judge
from muster_checks.iperf.pair import NicPair, NicSide

LIMITS = IperfParameters()
LINK = 100.0
FINE, SLOW = 92.0, 20.0
SIX = ("a", "b", "c", "d", "e", "f")


def side(node: str, nic: str = "mlx5_0", link: float | None = LINK) -> NicSide:
    return NicSide(node, nic, link)


def mesh(*slow: tuple[str, str], nodes: tuple[str, ...] = SIX, rate: float = SLOW) -> list[NicPair]:
    """All pairs both ways; slow are those that fit one of ``slow`` (sender, receiver; ``*`` is any)."""
    return [
        NicPair(side(sender), side(receiver), rate if _fits(sender, receiver, slow) else FINE, 5.0)
        for sender, receiver in permutations(nodes, 2)
    ]


def _fits(sender: str, receiver: str, slow: tuple[tuple[str, str], ...]) -> bool:
    return any(one in (sender, "*") and other in (receiver, "*") for one, other in slow)


def bad(pages: dict[str, list[Finding]]) -> dict[str, set[tuple[str, Verdict, str]]]:
    return {
        node: found
        for node, page in pages.items()
        if (found := {(f.component, f.verdict, f.reason) for f in page if f.verdict is not Verdict.PASS})
    }


def culprit(node: str, nic: str = "nic/mlx5_0") -> dict[str, set[tuple[str, Verdict, str]]]:
    return {node: {(nic, Verdict.FAIL, "SlowNetwork")}}


def test_a_sound_mesh_passes_with_the_median_on_each_page():
    pages = judge(mesh(), LIMITS)
    assert bad(pages) == {}
    assert set(pages) == set(SIX)
    (finding,) = pages["a"]
    assert finding.component == "nic/mlx5_0"
    assert missing_facts(finding.message, "92 Gbit/s", "10") == []
    assert [(m.name, m.value, m.unit, m.threshold) for m in finding.measurements] == [
        ("bandwidth", FINE, "Gbit/s", pytest.approx(70.0)),
        ("retransmits", 5.0, "1/GB", 1000.0),
    ]


def test_a_node_that_is_slow_with_all_is_to_blame_and_its_peers_are_not():
    pages = judge(mesh(("a", "*"), ("*", "a")), LIMITS)
    assert bad(pages) == culprit("a")
    finding = pages["a"][0]
    assert finding.fault_class is FaultClass.CONTACT
    assert missing_facts(finding.message, "10") == []
    assert finding.measurements[0].value == SLOW


@pytest.mark.parametrize(("slow", "word"), [(("a", "*"), "sends"), (("*", "a"), "receives")])
def test_one_bad_direction_is_found_and_named(slow: tuple[str, str], word: str):
    pages = judge(mesh(slow), LIMITS)
    assert bad(pages) == culprit("a")
    assert missing_facts(pages["a"][0].message, word, "5") == []


def test_two_bad_nodes_are_both_found_though_they_are_slow_towards_each_other():
    slow = [("a", "*"), ("*", "a"), ("b", "*"), ("*", "b")]
    assert bad(judge(mesh(*slow), LIMITS)) == culprit("a") | culprit("b")


def test_one_slow_pair_is_nobodys_fault_and_warns_on_both_pages():
    pages = judge(mesh(("a", "b"), ("b", "a")), LIMITS)
    assert bad(pages) == {
        "a": {("peer/b", Verdict.WARN, "SlowPair")},
        "b": {("peer/a", Verdict.WARN, "SlowPair")},
    }
    assert all(f.fault_class is FaultClass.NONE for page in pages.values() for f in page)


def test_when_all_pairs_are_slow_no_node_is_to_blame():
    pages = judge(mesh(("*", "*")), LIMITS)
    assert {verdict for found in bad(pages).values() for _, verdict, _ in found} == {Verdict.WARN}


def test_a_slow_link_between_two_racks_blames_no_node():
    across = [(one, other) for one in "abc" for other in "def"]
    pages = judge(mesh(*across, *[(other, one) for one, other in across]), LIMITS)
    assert {verdict for found in bad(pages).values() for _, verdict, _ in found} == {Verdict.WARN}


def test_two_nodes_that_are_fine_with_each_other_only_are_told_what_they_share():
    nodes = (*SIX, "g", "h")
    outside = nodes[2:]
    across = [(one, other) for one in "ab" for other in outside]
    pages = judge(mesh(*across, *[(other, one) for one, other in across], nodes=nodes), LIMITS)
    assert bad(pages) == culprit("a") | culprit("b")
    (finding,) = pages["a"]  # and no PASS beside it for its sound pair
    assert missing_facts(finding.message, "b") == []


def test_two_nodes_alone_cannot_tell_which_it_is():
    pages = judge(mesh(("*", "*"), nodes=("a", "b")), LIMITS)
    assert {verdict for found in bad(pages).values() for _, verdict, _ in found} == {Verdict.WARN}


def test_among_three_nodes_the_slow_one_is_found():
    assert bad(judge(mesh(("a", "*"), ("*", "a"), nodes=("a", "b", "c")), LIMITS)) == culprit("a")


def test_a_ring_measured_one_way_only_finds_the_slow_node_as_well():
    ring = [
        NicPair(
            side(SIX[place]),
            side(SIX[(place + step) % 6]),
            SLOW if "a" in (SIX[place], SIX[(place + step) % 6]) else FINE,
        )
        for place in range(6)
        for step in (1, 2)
    ]
    assert bad(judge(ring, LIMITS)) == culprit("a")


def rails(*slow: tuple[str, str]) -> list[NicPair]:
    return [
        NicPair(side(one, nic), side(other, nic), SLOW if {(one, nic), (other, nic)} & set(slow) else FINE)
        for one, other in permutations("abcd", 2)
        for nic in ("mlx5_0", "mlx5_1")
    ]


def test_one_nic_of_two_is_named_and_the_other_passes():
    pages = judge(rails(("a", "mlx5_1")), LIMITS)
    assert bad(pages) == culprit("a", "nic/mlx5_1")
    assert [f.component for f in pages["a"] if f.verdict is Verdict.PASS] == ["nic/mlx5_0"]


def test_when_all_nics_of_a_node_are_slow_it_is_the_node():
    pages = judge(rails(("a", "mlx5_0"), ("a", "mlx5_1")), LIMITS)
    assert bad(pages) == culprit("a", "host")
    assert len(pages["a"]) == 1


def test_without_a_known_link_the_other_pairs_say_what_is_slow():
    pairs = [
        NicPair(side(one, "", None), side(other, "", None), SLOW if "a" in (one, other) else FINE)
        for one, other in permutations(SIX, 2)
    ]
    pages = judge(pairs, LIMITS)
    assert bad(pages) == culprit("a", "host")
    assert pages["b"][0].measurements[0].threshold == FINE / 2


def test_pairs_of_slower_links_are_compared_with_their_like():
    def pair(one: str, other: str) -> NicPair:
        old = bool({one, other} & set("ab"))
        return NicPair(
            side(one, link=25.0 if one in "ab" else LINK),
            side(other, link=25.0 if other in "ab" else LINK),
            23.0 if old else FINE,
        )

    assert bad(judge([pair(*both) for both in permutations((*SIX, "g", "h"), 2)], LIMITS)) == {}


def test_pairs_that_were_held_back_say_nothing_of_what_is_usual():
    held_back = [
        NicPair(side("x", link=None), side(f"y{each}", link=None), 1.0, limited=each < 20, cpu_bound=each >= 20)
        for each in range(40)
    ]
    pairs = [
        NicPair(side(one, link=None), side(other, link=None), SLOW if "a" in (one, other) else FINE)
        for one, other in permutations(SIX, 2)
    ]
    assert judge([*pairs, *held_back], LIMITS)["a"][0].verdict is Verdict.FAIL


def test_less_than_half_of_its_equals_is_slow_though_it_satisfies_its_link():
    pages = judge(mesh(("a", "*"), ("*", "a"), rate=40.0), IperfParameters(min_share_of_link=0.1))
    assert bad(pages) == culprit("a")


def lone(**values: object) -> dict[str, list[Finding]]:
    return judge([NicPair(**{"sender": side("a"), "receiver": side("b", "", None), **values})], LIMITS)  # type: ignore[arg-type] # built by keyword


def test_a_lone_sound_pair_passes():
    pages = lone(gbit_per_s=93.0, retransmits_per_gb=12.0)
    assert bad(pages) == {}
    assert pages["a"][0].message == "93 Gbit/s"


@pytest.mark.parametrize("rate", [69.9, 0.0])
def test_a_lone_slow_pair_warns_about_the_pair(rate: float):
    assert bad(lone(gbit_per_s=rate))["a"] == {("peer/b", Verdict.WARN, "SlowPair")}


def test_at_the_limit_a_pair_passes():
    assert bad(lone(gbit_per_s=70.0)) == {}


def test_a_connection_through_which_nothing_comes_points_to_the_mtu_whatever_the_link():
    assert "MTU" in lone(gbit_per_s=0.0)["a"][0].message
    assert "MTU" in lone(gbit_per_s=0.0, sender=side("a", link=None))["a"][0].message


def test_a_full_processor_is_no_slow_network():
    pages = lone(gbit_per_s=30.0, cpu_bound=True)
    assert bad(pages) == {"a": {("peer/b", Verdict.UNKNOWN, "CpuBound")}}
    assert bad(lone(gbit_per_s=95.0, cpu_bound=True)) == {}


def test_nothing_at_all_is_slow_with_a_full_processor_too():
    assert bad(lone(gbit_per_s=0.0, cpu_bound=True))["a"] == {("peer/b", Verdict.WARN, "SlowPair")}


def test_a_limited_test_is_not_slow():
    assert bad(lone(gbit_per_s=0.1, limited=True)) == {}


def test_a_pair_that_was_not_measured_is_unknown_and_says_why():
    pages = lone(trouble="iperf3: unable to connect to server: Connection refused")
    assert bad(pages) == {"a": {("peer/b", Verdict.UNKNOWN, "NotMeasured")}}
    assert "refused" in pages["a"][0].message


def test_many_retransmits_of_a_lone_pair_warn():
    pages = lone(gbit_per_s=90.0, retransmits_per_gb=1000.5)
    assert bad(pages)["a"] == {("peer/b", Verdict.WARN, "PairRetransmits")}
    assert bad(lone(gbit_per_s=90.0, retransmits_per_gb=1000.0)) == {}


def test_retransmits_of_one_node_with_all_others_are_laid_on_it_and_warn():
    pairs = [
        NicPair(side(one), side(other), FINE, 5000.0 if other == "a" else 3.0) for one, other in permutations(SIX, 2)
    ]
    pages = judge(pairs, LIMITS)
    assert bad(pages) == {"a": {("nic/mlx5_0", Verdict.WARN, "Retransmits")}}
    assert missing_facts(pages["a"][0].message, "receives", "5000", "GB") == []


def test_of_a_pair_measured_twice_the_worse_stays():
    twice = [NicPair(side("a"), side("b"), rate) for rate in (30.0, 10.0, 20.0)]
    (finding,) = judge(twice, LIMITS)["a"]
    assert finding.measurements[0].value == 10.0


def test_no_pairs_no_pages():
    assert judge([], LIMITS) == {}


_PAIRS = st.lists(
    st.builds(
        NicPair,
        sender=st.builds(
            NicSide, st.sampled_from("abc"), st.sampled_from(["", "n0", "n1"]), st.sampled_from([None, 10.0])
        ),
        receiver=st.builds(NicSide, st.sampled_from("bcd"), st.sampled_from(["", "n0"]), st.sampled_from([None, 10.0])),
        gbit_per_s=st.sampled_from([0.0, 1.0, 6.9, 7.0, 9.4]),
        retransmits_per_gb=st.none() | st.sampled_from([0.0, 1e6]),
        limited=st.booleans(),
        cpu_bound=st.booleans(),
        trouble=st.sampled_from(["", "", "", "iperf3: no route"]),
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(_PAIRS)
def test_any_pairs_are_judged_and_none_is_forgotten(pairs: list[NicPair]):
    pages = judge(pairs, LIMITS)
    for page in pages.values():
        assert len({finding.key for finding in page}) == len(page)
        assert all(len(finding.message.encode()) <= 256 for finding in page)
    assert {pair.sender.node for pair in pairs} <= set(pages)
    for pair in pairs:
        if pair.trouble:
            assert any(f.verdict is Verdict.UNKNOWN for f in pages[pair.sender.node])


@settings(max_examples=80, deadline=None)
@given(_PAIRS)
def test_who_is_to_blame_has_bad_pairs_with_two_others_at_least(pairs: list[NicPair]):
    slow = {pair for pair in pairs if pair.gbit_per_s < 7}
    for culprit in find_culprits(pairs, slow):
        theirs = [pair for pair in culprit.pairs if pair in slow]
        assert len({end.node for pair in theirs for end in (pair.sender, pair.receiver)} - {culprit.node}) >= 2
