"""What a policy may say under sources, and how a bad one is told."""

import pytest

from muster_tainter.policy.file import PolicyError, parse_policy

HOT = "name: Hot, query: up"
KERNEL = "kernel: [{query: '{a=\"b\"}'}]"


def loki(fields: str) -> str:
    return f"rules: []\nsources: {{loki: {{{fields}}}}}"


def prometheus(fields: str) -> str:
    return f"rules: []\nsources: {{prometheus: {{{fields}}}}}"


def metric(fields: str) -> str:
    return prometheus(f"url: 'http://x', queries: [{{{fields}}}]")


def test_a_metric_query_has_safe_defaults() -> None:
    source = parse_policy(metric(f"{HOT}, endAfter: 10m")).sources.prometheus
    assert source is not None
    [query] = source.queries
    assert (source.every, query.node_label, query.hold, query.judged, query.end_after) == (30, "node", 0, "WARN", 600)


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
    ("text", "place"),
    [
        (loki(KERNEL), "sources.loki.url:"),
        (loki(f"url: 'ftp://x', {KERNEL}"), 'sources.loki.url: "ftp://x":'),
        (loki(f"url: 'http://me:secret@x', {KERNEL}"), "sources.loki.url:"),
        (loki(f"url: 'http://x:99999', {KERNEL}"), 'sources.loki.url: "http://x:99999":'),
        (loki("url: 'http://x'"), "sources.loki:"),
        (loki(f"url: 'http://x', {KERNEL}, tennant: a"), "sources.loki.tennant:"),
        (loki(f"url: 'http://x', {KERNEL}, tenant: 'a b'"), "sources.loki.tenant"),
        (loki(f"url: 'http://x', {KERNEL}, every: 5"), "sources.loki.every: 5:"),
        (loki(f"url: 'http://x', {KERNEL}, overlap: 2h"), "lookback"),
        (loki(f"url: 'http://x', {KERNEL}, user: me"), "tokenFile"),
        (loki(f"url: 'http://x', {KERNEL}, caFile: /ca"), "https"),
        (loki("url: 'http://x', kernel: [{query: 'rate({a=\"b\"}[5m])'}]"), "sources.loki.kernel[0].query"),
        (loki("url: 'http://x', kernel: [{query: '{}', nodeLabel: k8s.node.name}]"), "kernel[0].nodeLabel"),
        (loki("url: 'http://x', kernel: [{query: '{}', nodelabel: a}]"), "sources.loki.kernel[0].nodelabel:"),
        (loki("url: 'http://x', pods: [{query: '{}'}]"), "sources.loki.pods[0]"),
        (loki("url: 'http://x', pods: [{query: '{}', known: rocm}]"), 'sources.loki.pods[0].known[0]: "rocm":'),
        (loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: '(a'}]}]"), "patterns[0].pattern"),
        (
            loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: '.*'}]}]"),
            'patterns[0].pattern: ".*":',
        ),
        (loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: 'a b', pattern: x}]}]"), "patterns[0].name"),
        (
            loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: '((x{60}){60})'}]}]"),
            "patterns[0].pattern",
        ),
        (
            loki("url: 'http://x', pods: [{query: '{}', patterns: [{name: A, pattern: x}, {name: A, pattern: y}]}]"),
            'patterns[1].name: "A":',
        ),
        ("rules: []\nsources: {conditions: [{type: muster.dev/Healthy}]}", "sources.conditions[0].type"),
        ("rules: []\nsources: {conditions: [{type: 'a b'}]}", "sources.conditions[0].type"),
        ("rules: []\nsources: {conditions: [{type: A}, {type: A}]}", 'conditions[1].type: "A":'),
        ("rules: []\nsources: {conditions: [{type: A, status: Bad}]}", "sources.conditions[0].status"),
        ("rules: []\nsources: {lokki: {}}", "sources.lokki:"),
        (prometheus("queries: []"), "sources.prometheus.url:"),
        (prometheus("url: 'http://x', queries: []"), "sources.prometheus.queries"),
        (metric(HOT), "sources.prometheus.queries[0]"),
        (metric(f"{HOT}, endAfter: 1m, endQuery: up"), "sources.prometheus.queries[0]"),
        (metric(f"{HOT}, endAfter: 5"), "sources.prometheus.queries[0].endAfter: 5:"),
        (metric(f"{HOT}, endAfter: 1m, for: soon"), 'sources.prometheus.queries[0].for: "soon":'),
        (metric(f"{HOT}, endAfter: 1m, nodeLabel: k8s.node"), 'sources.prometheus.queries[0].nodeLabel: "k8s.node":'),
        (metric(f"{HOT}, endAfter: 1m, severity: page"), "sources.prometheus.queries[0].severity:"),
        (metric(f"{HOT}, endAfter: 1m, verdict: UNKNOWN"), "sources.prometheus.queries[0].verdict:"),
        (metric("name: 'a b', query: up, endAfter: 1m"), 'sources.prometheus.queries[0].name: "a b":'),
        (metric("name: A, query: '', endAfter: 1m"), "sources.prometheus.queries[0].query:"),
        (metric(f"{HOT}, endAfter: 1m}}, {{{HOT}, endAfter: 2m"), 'queries[1].name: "Hot":'),
    ],
)
def test_a_bad_source_is_told_with_its_place(text: str, place: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(text)
    assert place in str(error.value)
