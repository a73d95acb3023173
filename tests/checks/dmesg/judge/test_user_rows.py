"""Users add rows and change shipped ones; a bad one is refused by its name, with what is allowed."""

import pytest

from muster_checks.base.vocabulary import Verdict
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import CatalogueError

MY_ROW = (
    "{name: MyRow, pattern: 'widget (?P<w>w\\d+) died', component: 'widget/{w}', "
    "verdict: FAIL, class: replace, message: 'widget {w} died'}"
)


@pytest.fixture
def load(tmp_path):
    def write_and_load(text):
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_catalogue(path)

    return write_and_load


def test_a_row_is_added(load, new_bench, summarize):
    bench = new_bench(load(f"rows: [{MY_ROW}]"))
    assert summarize(bench.feed("widget w7 died")) == [("widget/w7", "MyRow", "FAIL", "replace")]
    assert summarize(bench.feed("NVRM: Xid (PCI:0000:b3:00): 79")) == [("gpu/0000:b3:00.0", "Xid79", "FAIL", "reboot")]


def test_a_shipped_row_is_changed_by_its_name_and_keeps_the_rest(load, new_bench, summarize):
    bench = new_bench(load("rows: [{name: OOMKilling, verdict: FAIL, class: reboot}]"))
    assert summarize(bench.feed("Killed process 1 (x) total-vm:1kB")) == [("host", "OOMKilling", "FAIL", "reboot")]


def test_a_shipped_row_is_switched_off(load, new_bench):
    assert new_bench(load("rows: [{name: OOMKilling, verdict: PASS}]")).feed("Killed process 1 (x) total-vm:1kB") == []


def test_a_row_that_is_switched_off_still_leads_to_the_one_that_waits_for_it(load, new_bench, summarize):
    bench = new_bench(load("rows: [{name: SoftLockup, verdict: PASS}]"))
    signs = bench.feed("watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [x:1]")
    assert signs == []
    frame = " mlx5e_napi_poll+0x12/0x34 [mlx5_core]"
    assert summarize(bench.feed(frame, 0.1)) == [("host", "NicReceiveLockup", "FAIL", "reboot")]


def test_the_details_of_a_switch_error_that_is_switched_off_say_nothing_either(load, new_bench):
    bench = new_bench(load("sxid: {20009: {verdict: PASS}}"))
    for rest in ("Non-fatal, Link 4 RX Short Error Rate", "Severity 0 Engine instance 4 Sub-engine instance 00"):
        assert bench.feed(f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20009, {rest}") == []


def test_a_shipped_warning_with_its_own_quiet_time_can_be_made_to_fail(load):
    rows = {row.name: row for row in load("rows: [{name: KernelOops, verdict: FAIL, class: reboot}]").rows}
    assert (rows["KernelOops"].verdict, rows["KernelOops"].clears) == (Verdict.FAIL, "boot")


def test_xid_and_sxid_get_the_user_s_verdict(load, new_bench, summarize):
    bench = new_bench(
        load(
            "xid: {79: {verdict: WARN, class: contact}, 74: {verdict: PASS}, 999: {verdict: FAIL, class: reset}}\n"
            "sxid: {24007: {verdict: WARN}}"
        )
    )
    assert summarize(bench.feed("NVRM: Xid (PCI:0000:b3:00): 79"))[0][2:] == ("WARN", "contact")
    assert bench.feed("NVRM: Xid (PCI:0000:b3:00): 74") == []
    assert summarize(bench.feed("NVRM: Xid (PCI:0000:b3:00): 999"))[0][1:] == ("Xid999", "FAIL", "reset")
    assert summarize(bench.feed("SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 28 x"))[0][2:] == ("WARN", "")


def test_an_empty_file_changes_nothing(load, catalogue):
    assert load("").rows == catalogue.rows


def _row(**changes):
    keys = {"name": "MyRow", "pattern": "'x'", "component": "host", "verdict": "FAIL", "message": "m"} | changes
    return "rows: [{name: OOMKilling}, {" + ", ".join(f"{k}: {v}" for k, v in keys.items() if v is not None) + "}]"


WHERE = "mine.yaml: rows[1] (MyRow)."
BAD = [
    (_row(pattern="'('"), WHERE + 'pattern: "(": missing ): ('),
    (_row(pattern="'(?=x)'"), "RE2 syntax"),
    (_row(pattern="'a\\1'"), "RE2 syntax"),
    (_row(pattern="''"), WHERE + "pattern: "),
    (_row(pattern="[x, '(']"), WHERE + 'pattern[1]: "("'),
    (_row(pattern=None), WHERE + "pattern: missing"),
    (_row(patern="x"), WHERE + "patern: "),
    (_row(verdict="BAD"), WHERE + "verdict: \"BAD\": Input should be 'PASS', 'WARN' or 'FAIL'"),
    (_row(**{"class": "explode"}), WHERE + 'class: "explode": Input should be'),
    (_row(component="'disk/{nosuch}'"), WHERE + "component: {nosuch}: "),
    (_row(component="somewhere"), WHERE + 'component: "somewhere": '),
    (_row(message="'{nosuch}'"), WHERE + "message: {nosuch}: "),
    (_row(quiet_s=5), WHERE + "quiet_s: "),
    (_row(clears="quiet"), WHERE + "quiet_s: "),
    (_row(count=5), WHERE + "count: "),
    (_row(count=5000, window_s=5), WHERE + "count: 5000: Input should be less than or equal to 100"),
    (_row(count="'5'", window_s=5), WHERE + 'count: "5": Input should be a valid integer'),
    (_row(window_s=".nan", count=2), WHERE + "window_s: "),
    (_row(status_set="[61]"), WHERE + "status_set: "),
    (_row(status_set="[64]"), WHERE + "status_set[0]: 64"),
    (_row(node_process="true", pattern="'task (?P<task>x)'"), WHERE + "node_process: "),
    (_row(context="{pattern: '[', within_s: 5}"), WHERE + "context.pattern: "),
    (_row(context="{patern: x, within_s: 5}"), WHERE + "context.patern: "),
    (_row(after="{row: Nope, within_s: 5}"), WHERE + 'after.row: "Nope": '),
    (_row(name="'has blank'"), "mine.yaml: rows[1] (has blank).name: "),
    (_row(name=None), "mine.yaml: rows[1].name: missing"),
    (f"rows: [{MY_ROW}, {MY_ROW}]", "mine.yaml: rows[1] (MyRow).name: "),
    (_row(pattern="'" + "(?:x{300}y{300}){1}" * 40 + "'"), "mine.yaml: "),
    ("rows: [5]", "mine.yaml: rows[0]: 5: "),
    ("rows: 5", "mine.yaml: rows: 5: "),
    ("5", "mine.yaml: "),
    ("colour: red", "mine.yaml: colour: "),
    ("xid: {79: {verdict: BAD}}", "mine.yaml: xid[79].verdict: "),
    ("xid: {79: {verdict: FAIL, colour: red}}", "mine.yaml: xid[79].colour: "),
    ("xid: {abc: {verdict: FAIL}}", "mine.yaml: xid"),
    ("xid: {79: {verdict: FAIL, quiet_s: 5}}", "mine.yaml: xid[79]"),
    ("rows: [", "mine.yaml: line 2: "),
    ("[" * 500_000, "50"),
    ("- " * 200_000, "50"),
    ("rows: &a [*a]", "mine.yaml: rows[0]: [[["),
    ("rows: [[&a [x, x], &b [*a, *a], &c [*b, *b]]]", "mine.yaml: rows[0]: [['x', 'x'], [['x', 'x'], ['x', 'x']]"),
    (b"\xff", "byte 0"),
    (b"#" * 1_100_000, "mine.yaml: "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told_so"), BAD, ids=range(len(BAD)))
def test_a_bad_file_names_row_key_value_and_what_is_allowed(text, told_so, load):
    with pytest.raises(CatalogueError) as caught:
        load(text)
    assert told_so in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CatalogueError, match=r"nowhere\.yaml: No such file"):
        load_catalogue(tmp_path / "nowhere.yaml")


def test_what_a_line_says_is_never_read_as_a_template(load, new_bench):
    bench = new_bench(
        load(
            "rows: [{name: Echo, pattern: 'say (?P<a>.*)!(?P<b>.*)', component: 'x/{a}', "
            "verdict: WARN, message: '{a} and {b}'}]"
        )
    )
    (sign,) = bench.feed("say {b}!{a} {0} %s")
    assert (sign.component, sign.message) == ("x/{b}", "{b} and {a} {0} %s on x/{b}")


def test_a_pattern_that_would_take_for_ever_elsewhere_takes_no_time(load, new_bench):
    bench = new_bench(load("rows: [{name: Evil, pattern: '^(a+)+$', component: host, verdict: WARN, message: m}]"))
    assert bench.feed("a" * 5000 + "b") == []
    assert len(bench.feed("a" * 5000)) == 1
