"""The tables are complete against their sources, and what they say follows the policy."""

import csv

import pytest

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.dmesg.catalogue.types import read_sxids, read_xids

BUCKETS = {
    "RESTART_APP": (Verdict.WARN, FaultClass.RESTART_APP),
    "IGNORE": (Verdict.WARN, FaultClass.NONE),
    "RESET_GPU": (Verdict.FAIL, FaultClass.RESET),
    "WORKFLOW_XID_48": (Verdict.FAIL, FaultClass.RESET),
    "WORKFLOW_XID_45": (Verdict.WARN, FaultClass.RESTART_APP),
    "RESTART_BM": (Verdict.FAIL, FaultClass.REBOOT),
    "RESTART_VM": (Verdict.FAIL, FaultClass.REBOOT),
    "CHECK_MECHANICALS": (Verdict.FAIL, FaultClass.CONTACT),
    "CONTACT_SUPPORT": (Verdict.FAIL, FaultClass.CONTACT),
    "UPDATE_SWFW": (Verdict.WARN, FaultClass.CONTACT),
    "CHECK_UVM": (Verdict.WARN, FaultClass.RESET),
}


def table(shared_data, name):
    return list(csv.DictReader(shared_data.text(f"catalogue/{name}.csv").splitlines()))


def test_the_tables_have_a_row_for_each_code():
    assert sorted(read_xids()) == list(range(1, 174))
    assert len(read_sxids()) == 93


def test_every_xid_of_the_source_has_a_row(shared_data):
    assert sorted(read_xids()) == sorted(int(row["xid"]) for row in table(shared_data, "xid_table"))


def test_every_sxid_of_the_source_has_a_row(shared_data):
    assert sorted(read_sxids()) == sorted(int(row["sxid"]) for row in table(shared_data, "sxid_table"))


def test_every_nvlink5_rule_of_the_source_is_there(shared_data, catalogue):
    source = {
        (int(r["xid"]), r["unit"].replace(" ", "_"), r["error_status_hex"], r["recovery_action"])
        for r in table(shared_data, "xid_nvlink5_decode")
    }
    ours = {(row.code, "/".join(row.units), row.status, row.action) for row in catalogue.nvlink5}
    for code, unit, status, action in source:
        assert (code, unit, tuple(int(s, 16) for s in status.split("/") if s), action) in ours
    assert len(catalogue.nvlink5) == 95 + 3  # three rules have a second pattern with another action


def test_an_xid_s_verdict_follows_nvidia_s_immediate_action(shared_data):
    """Test messages, unused codes and codes without an action have their own rule."""
    rows, judged = read_xids(), 0
    for source in table(shared_data, "xid_table"):
        row, bucket = rows[int(source["xid"])], source["nvidia_immediate_bucket"]
        if source["description"] == "Unused":
            assert (row.verdict, row.fault_class) == (Verdict.WARN, FaultClass.NONE)
        elif bucket in BUCKETS and row.code not in (106, 107):
            assert (row.verdict, row.fault_class) == BUCKETS[bucket], row.code
            judged += 1
    assert judged == 87  # counted by hand from the lists of codes in each action


@pytest.mark.parametrize("code", [13, 31, 32, 43, 45, 68, 69])
def test_an_application_error_never_fails(code):
    assert read_xids()[code].verdict is Verdict.WARN


@pytest.mark.parametrize("code", [46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143])
def test_what_all_systems_agree_on_fails(code):
    assert read_xids()[code].verdict is Verdict.FAIL


def test_every_row_says_who_says_so_and_a_failure_never_goes_by_silence(catalogue):
    for row in (*catalogue.xids.values(), *catalogue.sxids.values(), *catalogue.rows, *catalogue.recoveries.values()):
        assert row.source, row
        if row.verdict is Verdict.FAIL:
            assert row.clears != "quiet", row
        if row.verdict is Verdict.WARN:
            assert row.quiet_s > 0, row
    for row in catalogue.rows:
        assert row.description, row
        assert row.vendor, row
        assert row.source.startswith(("R", "K")), row
        assert not row.source.startswith("K") or "hardware" in row.source, row


def test_every_bit_that_nvidia_s_workflow_names_is_decoded(catalogue):
    named = {
        1: [0, 1, 4, 5, 8, 9, 12, 16, 17, 20, 21, 22, 23, 24, 27, 28, 29, 30],
        3: [0, 1, 2, 6, 13, 16, 17, 18, 19],
        4: [16, 17, 18],
        5: list(range(18, 30)),
    }
    assert [(row.register, row.bit) for row in catalogue.link_bits] == [(r, b) for r in named for b in named[r]]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Xid79", ["FAIL", "reboot", "RESTART_BM"]),
        ("Xid149:NETIR_LINK_EVT", ["149"]),
        ("Xid999", ["999"]),
        ("SXid20034", ["LTSSM", "Fatal", "FAIL", "reset"]),
        ("PcieCorrected", ["30", "3600 s"]),
        ("NoSuchThing", []),
    ],
)
def test_a_reason_is_explained(catalogue, reason, words):
    text = catalogue.explain(reason)
    assert text.startswith(reason)
    assert [word for word in words if word not in text] == []


def test_every_reason_that_can_be_raised_is_explained(catalogue):
    for row in catalogue.rows:
        assert row.description in catalogue.explain(row.name)
