"""What a policy may say under sources, and how a bad one is told."""

import pytest

from muster_tainter.policy.file import PolicyError, parse_policy

KERNEL = "kernel: [{query: '{a=\"b\"}'}]"


def loki(fields: str) -> str:
    return f"rules: []\nsources: {{loki: {{{fields}}}}}"


def test_defaults_are_those_of_an_opentelemetry_collector() -> None:
    source = parse_policy(loki(f"url: 'http://loki:3100/', {KERNEL}")).sources.loki
    assert source is not None
    assert source.url == "http://loki:3100"
    assert source.kernel[0].node_label == "k8s_node_name"
    assert (source.every, source.overlap, source.lookback) == (5.0, 60.0, 3600.0)


def test_a_condition_s_status_may_be_written_as_yaml_likes_it() -> None:
    text = "rules: []\nsources: {conditions: [{type: A}, {type: B, status: False}, {type: C, status: [True, Unknown]}]}"
    assert [rule.status for rule in parse_policy(text).sources.conditions] == [
        ("True",),
        ("False",),
        ("True", "Unknown"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (loki(KERNEL), "sources.loki.url: missing"),
        (loki(f"url: 'ftp://x', {KERNEL}"), 'sources.loki.url: "ftp://x": expected http://'),
        (loki(f"url: 'http://me:secret@x', {KERNEL}"), "without user"),
        (loki(f"url: 'http://x:99999', {KERNEL}"), "expected http://"),
        (loki("url: 'http://x'"), "expected kernel or pods"),
        (loki(f"url: 'http://x', {KERNEL}, tennant: a"), "unknown key: expected caFile, every,"),
        (loki(f"url: 'http://x', {KERNEL}, tenant: 'a b'"), "sources.loki.tenant"),
        (loki(f"url: 'http://x', {KERNEL}, every: 5"), "sources.loki.every: 5: expected a time"),
        (loki(f"url: 'http://x', {KERNEL}, overlap: 2h"), "overlap: expected no more than lookback"),
        (loki(f"url: 'http://x', {KERNEL}, user: me"), "expected tokenFile with it"),
        (loki(f"url: 'http://x', {KERNEL}, caFile: /ca"), "no effect without https"),
        (loki("url: 'http://x', kernel: [{query: 'rate({a=\"b\"}[5m])'}]"), "sources.loki.kernel[0].query"),
        (loki("url: 'http://x', kernel: [{query: '{}', nodeLabel: k8s.node.name}]"), "kernel[0].nodeLabel"),
        (loki("url: 'http://x', kernel: [{query: '{}', nodelabel: a}]"), "expected nodeLabel, patterns or query"),
        (loki("url: 'http://x', pods: [{query: '{}'}]"), "expected patterns, or known"),
        (loki("url: 'http://x', pods: [{query: '{}', known: rocm}]"), "expected cuda, nccl or poplar"),
        (loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: '(a'}]}]"), "patterns[0].pattern"),
        (loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: '.*'}]}]"), "the empty one too"),
        (loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: 'a b', pattern: x}]}]"), "patterns[0].name"),
        (
            loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: '((x{60}){60})'}]}]"),
            "patterns[0].pattern",
        ),
        (
            loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: x}, {name: A, pattern: y}]}]"),
            "expected a name of its own",
        ),
        ("rules: []\nsources: {conditions: [{type: muster.dev/Healthy}]}", "another agent's condition"),
        ("rules: []\nsources: {conditions: [{type: 'a b'}]}", "sources.conditions[0].type"),
        ("rules: []\nsources: {conditions: [{type: A}, {type: A}]}", "expected each type once"),
        ("rules: []\nsources: {conditions: [{type: A, status: Bad}]}", "expected True, False or Unknown"),
        ("rules: []\nsources: {lokki: {}}", "sources.lokki: unknown key: expected conditions or loki"),
    ],
)
def test_a_bad_source_is_told_with_its_place_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(text)
    assert words in str(error.value)
