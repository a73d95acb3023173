"""Whose node it is: claims of two agents, over time that is handed in."""

from muster_agent.publish.node_claim import LONGEST_WAIT_S, ClaimAction, NodeClaim


def test_a_free_node_is_taken_at_once():
    assert NodeClaim("a").decide("", "", 0.0).do is ClaimAction.PUBLISH


def test_a_container_restarted_within_its_pod_goes_on_at_once():
    assert NodeClaim("a").decide("a", "t1", 0.0).do is ClaimAction.PUBLISH


def test_a_newcomer_claims_waits_the_grace_and_takes_a_dead_agents_node():
    claim = NodeClaim("new", grace_s=5)
    assert claim.decide("old", "t1", 100.0).do is ClaimAction.CLAIM
    claim.record_claim(100.0)
    waiting = claim.decide("new", "t1", 101.0)
    assert (waiting.do, waiting.at) == (ClaimAction.WAIT, 105.0)
    assert claim.decide("new", "t1", 105.0).do is ClaimAction.PUBLISH


def test_a_newcomer_is_refused_when_the_holder_writes_itself_back():
    claim = NodeClaim("new", grace_s=5)
    claim.decide("old", "t1", 100.0)
    claim.record_claim(100.0)
    refused = claim.decide("old", "t2", 100.1)
    assert (refused.do, refused.at) == (ClaimAction.WAIT, 105.1)
    assert claim.holder == "old"
    assert claim.decide("old", "t2", 104.0).do is ClaimAction.WAIT
    assert claim.decide("old", "t2", 105.2).do is ClaimAction.CLAIM


def test_a_refused_newcomer_asks_ever_more_rarely():
    claim, now, waits = NodeClaim("new", grace_s=5), 0.0, []
    for _ in range(6):
        assert claim.decide("old", "t", now).do is ClaimAction.CLAIM
        claim.record_claim(now)
        at = claim.decide("old", "t", now + 0.1).at
        waits.append(round(at - now - 0.1, 3))
        now = at
    assert waits == [5, 10, 20, 30, 30, 30]
    assert max(waits) <= LONGEST_WAIT_S


def test_a_node_given_back_is_taken_at_once():
    claim = NodeClaim("new")
    claim.decide("old", "t", 0.0)
    claim.record_claim(0.0)
    claim.decide("old", "t", 0.1)
    assert claim.decide("", "t", 0.2).do is ClaimAction.PUBLISH
    assert claim.holder == ""


def test_a_living_holder_writes_itself_back_over_a_mere_claim():
    claim = NodeClaim("old")
    claim.decide("", "", 0.0)
    claim.record_write("t1")
    assert claim.decide("new", "t1", 1.0).do is ClaimAction.PUBLISH


def test_a_holder_cut_off_for_too_long_comes_back_as_a_newcomer():
    claim = NodeClaim("old")
    claim.decide("", "", 0.0)
    claim.record_write("t1")
    assert claim.decide("new", "t2", 60.0).do is ClaimAction.CLAIM, "the other has published since: it holds the node"
    claim.record_claim(60.0)
    assert claim.decide("new", "t2", 60.1).do is ClaimAction.WAIT
    assert claim.holder == "new"


def test_two_agents_settle_on_one_whatever_the_order():
    """Both act on what they see at once; the object is what they wrote last."""
    now, stamp = 0.0, 0
    named, observed = "", ""
    agents = {uid: NodeClaim(uid, grace_s=5) for uid in ("a", "b")}
    writes = 0
    for _ in range(2_000):
        now += 0.1
        for uid, claim in agents.items():
            move = claim.decide(named, observed, now)
            if move.do is ClaimAction.CLAIM:
                named, writes = uid, writes + 1
                claim.record_claim(now)
            elif move.do is ClaimAction.PUBLISH and named != uid:
                stamp, writes = stamp + 1, writes + 1
                named, observed = uid, f"t{stamp}"
                claim.record_write(observed)
    assert sum(claim.held for claim in agents.values()) == 1
    assert writes < 30, "a fight is no storm"
