"""The founding page's text, line for line."""

import re
from pathlib import Path

from msgspec import structs

from muster_agent.query.node_answer import CheckAnswer, NodeAnswer, no_answer
from muster_agent.query.text_layout import ending, heading, node_block, node_status, summary_block
from muster_checks.base.vocabulary import Finding, Measurement, Verdict, worst
from muster_checks.pciebw.bandwidth import Bandwidth
from muster_checks.pciebw.judge import PciebwLimits, judge

SAMPLE = (Path(__file__).parent / "samples/status_pciebw.txt").read_text()
FIGURES = re.compile(r"^[\d.]+( [\d.]+){7}$", re.MULTILINE)
# what is not compared, and the lines that docs/decisions.md names
ADDRESSES = re.compile(r"\d+\.\d+\.\d+\.\d+")
RUNTIME = re.compile(r"^runtime: [\d.e-]+ sec$", re.MULTILINE)
OURS = re.compile(r"^(FAIL|WARN|UNKNOWN) gpu/.*\n", re.MULTILINE)
LIMITS = PciebwLimits(
    min_bandwidth_gb_per_s=8.0,
    min_ipu_bandwidth_gb_per_s=0.0,
    min_share_of_link=0.25,
    warn_share_of_link=0.6,
    min_share_of_others=0.5,
    warn_share_of_others=0.8,
)


def measured(node: str, address: str, figures: list[float]) -> NodeAnswer:
    """As the check pciebw judges it with PCIeBW 8."""
    samples = [Bandwidth(f"gpu/0000:{n:02x}:00.0", figure, 13.0) for n, figure in enumerate(figures)]
    findings = judge(samples, {}, LIMITS)
    verdict = worst([finding.verdict for finding in findings])
    result = CheckAnswer(check="pciebw", verdict=verdict, findings=tuple(findings))
    return NodeAnswer(node=node, endpoint=f"{address}:3333", verdict=verdict, results=(result,))


def of_one(check: str, verdict: Verdict, **given) -> NodeAnswer:
    results = (CheckAnswer(check=check, verdict=verdict, **given),)
    return NodeAnswer(node="node-1", endpoint="10.0.0.1:3333", verdict=verdict, results=results)


def test_the_samples_figures_give_the_samples_answer():
    assert_answers(SAMPLE)


def test_the_figures_of_the_page_give_the_answer_of_the_page(shared_data):
    assert_answers(shared_data.text("autopilot/status_pciebw.txt"))


def assert_answers(sample: str) -> None:
    figures = [[float(each) for each in found.group().split()] for found in FIGURES.finditer(sample)]
    names = re.findall(r"^Node: (\S+)$", sample, re.MULTILINE)
    nodes = [
        measured(name, address, found)
        for name, address, found in zip(names, ("192.0.2.1", "192.0.2.2"), figures, strict=True)
    ]
    blocks = [node_block(node, f"host={node.node}&check=pciebw") for node in nodes]
    summary = summary_block({node.node: node_status(node) for node in reversed(nodes)})
    text = heading(None) + "\n\n".join(blocks) + "\n" + summary + "\n" + ending(31.8)
    assert len(OURS.findall(text)) == 1, "the slow GPU, and no other"
    assert masked(OURS.sub("", text)) == masked(sample)


def masked(text: str) -> str:
    return RUNTIME.sub("runtime", ADDRESSES.sub("address", text))


def test_a_component_that_is_not_sound_is_named_with_what_is_wrong():
    answer = measured("node-1", "10.0.0.1", [12.3, 5.3])
    (slow,) = [finding for finding in answer.results[0].findings if finding.verdict is Verdict.FAIL]
    text = node_block(answer, "host=node-1")
    assert f"12.3 5.3\nFAIL gpu/0000:01:00.0 LowBandwidth: {slow.message}" in text


def test_what_was_not_measured_has_a_place_in_the_row_of_figures():
    answer = of_one(
        "pciebw",
        Verdict.UNKNOWN,
        findings=(
            Finding(component="gpu/0", verdict=Verdict.UNKNOWN, reason="NotMeasured", message="held"),
            Finding(
                component="gpu/1",
                verdict=Verdict.PASS,
                reason="Measured",
                message="",
                measurements=(Measurement("to_device", 12.31, "GB/s"),),
            ),
        ),
    )
    assert "\n- 12.3\nUNKNOWN gpu/0 NotMeasured: held\n" in node_block(answer, "")
    assert node_status(answer) == ["PCIE Unknown"]


def test_a_node_on_which_nothing_has_run_is_not_ok():
    assert node_status(of_one("pciebw", Verdict.SKIP)) == ["Skipped"]
    assert node_status(of_one("pciebw", Verdict.UNKNOWN)) == ["PCIE Unknown"]
    assert node_status(NodeAnswer(node="node-1", verdict=Verdict.UNKNOWN)) == ["Unknown"]
    both = CheckAnswer(check="ipu", verdict=Verdict.SKIP), CheckAnswer(check="os", verdict=Verdict.PASS)
    assert node_status(NodeAnswer(node="node-1", verdict=Verdict.PASS, results=both)) == ["Ok"]


def test_checks_that_autopilot_has_are_named_as_it_names_them():
    names = [node_status(of_one(check, Verdict.FAIL)) for check in ("dcgm", "remapped", "gpupower", "ping", "ib")]
    assert names == [["DCGM Failed"], ["REMAPPED ROWS Failed"], ["GPU POWER Failed"], ["PING Failed"], ["IB Failed"]]
    text = node_block(of_one("dcgm", Verdict.FAIL), "")
    assert re.search(r"^\[\[ DCGM \]\] .* DCGM Diagnostics .*\n\[\[ DCGM \]\] FAIL$", text, re.M)


def test_a_result_that_was_not_made_for_this_question_says_so():
    why = "pod team-a/train-0 holds a GPU"
    answer = of_one("pciebw", Verdict.PASS, age_seconds=7300.0, refused="busy", why=why)
    lines = node_block(answer, "").splitlines()
    refused, age = lines[lines.index("Host  node-1") + 1 :][:2]
    assert refused.endswith(f": {why}")
    assert " 2 h " in age


def test_a_node_that_did_not_answer_is_a_block_of_its_own_and_in_the_summary():
    why = "said nothing for 20 s"
    answer = no_answer("node-5", "10.0.0.5:3333", ["pciebw"], "NoAnswer", why)
    (status,) = node_status(answer)
    assert "(NoAnswer)" in status
    text = node_block(answer, "host=node-5")
    assert re.search(rf"Response:\n.*: {why}\n\nNode Status: {re.escape(status)}\n", text)
    assert "[[ PCIEBW ]]" not in text


def test_a_peer_cannot_write_another_checks_lines():
    lie = "x\n[[ PCIEBW ]] SUCCESS"
    answers = of_one(lie, Verdict.FAIL, reason=lie, message=lie), no_answer("node-1", "", [], "", lie)
    refused = NodeAnswer(node="node-1", verdict=Verdict.FAIL, results=of_one("x", Verdict.FAIL, reason=lie).results)
    for answer in (*answers, structs.replace(refused, error=lie)):
        assert not [line for line in node_block(answer, "").splitlines() if line.startswith("[[ PCIEBW ]]")]


def test_a_node_without_an_agent_has_no_address():
    text = node_block(no_answer("node-5", "", ["pciebw"], "NoAgent", "no agent runs there"), "host=node-5")
    assert [line.rpartition(": ")[2] for line in text.splitlines()[:3]] == ["unknown", "node-5", "none"]


def test_what_a_peer_says_stays_on_its_line():
    evil = Finding(
        component="host", verdict=Verdict.FAIL, reason="X", message="a\nNode Status: Ok\n\x1b[2J" + "b" * 5000
    )
    text = node_block(of_one("os", Verdict.FAIL, findings=(evil,)), "")
    assert text.count("\nNode Status: ") == 1
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 1100


def test_the_summary_has_a_node_on_each_line_by_name():
    text = summary_block({"b": ["Ok"], "a": ["PCIE Failed", "DCGM Failed"]})
    assert text.endswith("\n\n{'a': ['PCIE Failed', 'DCGM Failed'],\n 'b': ['Ok']}\n")
    assert summary_block({}).endswith("\n\n{}\n")


def test_the_first_line_says_which_nodes():
    assert heading(["a", "b"]).endswith(" a, b\n")
    many = heading([f"n{n}" for n in range(10_000)])
    assert ("10000" in many, "n1" in many) == (True, False)
    assert heading(None, "team-a:app=train").endswith(" job team-a:app=train\n")
    for part in ("node-1", "job a:b=c", "label d=e"):
        assert part in heading(["node-1"], "a:b=c", "d=e")


def test_what_had_no_effect_and_why_an_answer_is_not_whole_stand_at_the_end():
    note, error = "r has no effect", "it breaks off"
    assert ending(1.5, [note], error) == f"error: {error}\nnote: {note}\nruntime: 1.5 sec\n"
