"""NVSwitch lines: the guide's class, the line's own word, and lines that only belong to another."""

import pytest
from tests.wording.facts import missing_facts

SWITCH = "nvswitch/0000:c1:00.0"


def sxid(code, rest):
    return f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}, {rest}"


@pytest.mark.parametrize(
    ("text", "verdict", "asks"),
    [
        (sxid(12020, "Fatal, Link 32 egress sequence ID error"), "FAIL", "reboot"),
        (sxid(12020, "Non-fatal, Link 32 egress sequence ID error"), "FAIL", "reboot"),  # the guide: always fatal
        (sxid(24007, "Fatal, Link 28 sourcetrack timeout error (First)"), "FAIL", "reset"),
        (sxid(24007, "Non-fatal, Link 28 sourcetrack timeout error (First)"), "WARN", ""),
        (sxid(20001, "Non-fatal, Link 28 TX Replay Error"), "WARN", ""),
        (sxid(20001, "Fatal, Link 28 TX Replay Error"), "WARN", ""),
        (sxid(99999, "Fatal, Link 28 something new"), "FAIL", "reset"),
        (sxid(99999, "Non-fatal, Link 28 something new"), "WARN", ""),
        (sxid(26006, "SOE HALTED"), "WARN", ""),
    ],
)
def test_an_sxid_is_judged_by_the_guide_and_by_its_own_word(text, verdict, asks, bench, summarize):
    ((component, _, *judged),) = summarize(bench.feed(text))
    assert (component, judged) == (SWITCH, [verdict, asks])


@pytest.mark.parametrize(
    "rest", ["Severity 1 Engine instance 28 Sub-engine instance 00", "Data {0x00000000, 0x00000000}"]
)
def test_a_follow_up_does_not_count_while_its_primary_is_open(rest, bench, summarize):
    bench.feed(sxid(24007, "Fatal, Link 28 sourcetrack timeout error (First)"))
    assert bench.feed(sxid(24007, rest), 5) == []
    assert bench.tick(10) == []
    assert summarize(bench.feed(sxid(24005, rest), 5)) == [(SWITCH, "SXid24005", "WARN", "")]


def test_a_follow_up_of_an_always_fatal_code_alone_only_warns(bench, summarize):
    follow_up = sxid(12020, "Severity 1 Engine instance 28 Sub-engine instance 00")
    assert summarize(bench.feed(follow_up)) == [(SWITCH, "SXid12020", "WARN", "")]


def test_the_message_names_the_link(bench):
    (sign,) = bench.feed(sxid(24007, "Fatal, Link 28 sourcetrack timeout error (First)"))
    assert missing_facts(sign.message, "24007", SWITCH, "28", "reset") == []
