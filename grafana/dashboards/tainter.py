"The tainter itself: latency, budgets, withheld taints, and its own health."

from collections.abc import Callable

from dashboards.colours import FAIL, HELD, JUST_1, PASS, SKIP, UNKNOWN, WARN, WITHHELD, from_1, warns_at
from dashboards.model import Column, Object, Query, assemble, graph, rises, stat, table, variable
from dashboards.shared_panels import budgets, events, new_taints, withheld

T = 'namespace=~"$namespace"'
HOPS = (
    ("1 sign to finding", "muster_agent_detect_seconds", ""),
    ("2 finding to API server", "muster_agent_publish_seconds", ""),
    ("1+2 sign to API server, as the tainter sees it", "muster_tainter_hop_seconds", ',hop="seen_to_observed"'),
    ("3 API server to tainter", "muster_tainter_hop_seconds", ',hop="observed_to_delivered"'),
    ("4 tainter to taint", "muster_tainter_hop_seconds", ',hop="delivered_to_patched"'),
)


def _hops(value: Callable[[str, str], str]) -> str:
    """``value``: PromQL of one hop's metric and matchers; the result has a label ``way``."""
    each = (f'label_replace({value(metric, T + only)}, "way", "{way}", "", "")' for way, metric, only in HOPS)
    return " or ".join(each)


def _quantile(part: float, window: str) -> str:
    return _hops(lambda metric, only: f"histogram_quantile({part}, {rises(f'{metric}_bucket', only, 'le', window)})")


def dashboard() -> Object:
    rows = [
        [
            stat(
                "Leads",
                Query(f"sum(muster_tainter_leader{{{T}}})"),
                "One replica leads; another takes over within ten seconds. Without a leader no node is tainted or "
                "released.",
                steps=JUST_1,
            ),
            stat(
                "Policy",
                Query(f"min(muster_tainter_policy_good{{{T}}})"),
                "Whether the policy file is valid. An invalid change has no effect: the last valid policy stays "
                "active; the log contains the error.",
                values={1: ("good", PASS), 0: ("BAD", FAIL)},
            ),
            new_taints(
                T,
                "Whether Muster is paused (`muster pause`); `muster resume` ends the pause.",
            ),
            withheld(
                T,
                "Nodes with a fault whose taint is withheld: they still receive work. For their names see the fleet "
                "page or `muster status`.",
            ),
            stat(
                "Waiting",
                Query(f"sum(max by (queue) (muster_tainter_queue_depth{{{T}}}))"),
                "Nodes that wait for a decision or a report. The value falls to 0 within seconds.",
                steps=warns_at(100, 1000),
            ),
            stat(
                "Agents ready",
                Query(f"max(muster_tainter_agents_ready{{{T}}})"),
                "Nodes with a ready agent.",
            ),
            stat(
                "Agents silent",
                Query(f"max(muster_tainter_agents_silent{{{T}}})"),
                "Nodes whose agent is silent for longer than the grace: their health is unknown.",
                steps=from_1(UNKNOWN),
            ),
            stat(
                "Most agents silent",
                Query(f"max(muster_tainter_agents_incident{{{T}}})"),
                "Whether most agents are silent at once, e.g. during a rollout, or because of the control plane. "
                "Muster sets no taints for it.",
                values={0: ("no", PASS), 1: ("YES", FAIL)},
            ),
        ],
        "From the sign to the taint",
        [
            table(
                "Each hop, over the time shown",
                [
                    Query(
                        _hops(lambda metric, only: rises(f"{metric}_count", only, window="$__range")), column="times"
                    ),
                    Query(_quantile(0.5, "$__range"), column="50 %"),
                    Query(_quantile(0.99, "$__range"), column="99 %"),
                ],
                "The path of a fault. Hops 1 and 2 are the agents', for all findings; 3 and 4 the tainter's, for "
                "those that tainted a node. Slow in 1: nodes lack CPU time. In 2 and 3: the API server. In 4: many "
                "faults at once, or the API server.",
                columns={
                    "way": Column(),
                    "times": Column(width=80, decimals=0),
                    "50 %": Column(unit="s", width=90, steps=((None, PASS), (1, WARN), (10, FAIL))),
                    "99 %": Column(unit="s", width=90, steps=((None, PASS), (5, WARN), (60, FAIL))),
                },
                sort="way",
                descending=False,
                width=12,
            ),
            graph(
                "99 % of each hop, over the previous hour",
                [Query(_quantile(0.99, "1h"), "{{way}}")],
                "A gap means that there were no faults in that hour.",
                unit="s",
                width=12,
            ),
        ],
        "Budgets and withheld taints",
        [
            budgets(
                T,
                "Usage and remaining room of each budget. `rate` frees up with time. At left 0, further taints are "
                "withheld; the worst node is first when there is room.",
            ),
            graph(
                "Withheld",
                [Query(f"max by (why) (muster_tainter_nodes_withheld{{{T}}})", "{{why}}")],
                "Nodes whose taint is withheld, by cause.",
                colours={"budget": WITHHELD, "paused": UNKNOWN},
                stacked=True,
                width=8,
                decimals=0,
            ),
            graph(
                "Tainted, draining, under repair",
                [
                    Query(f"sum(max by (taint) (muster_tainter_taints{{{T}}}))", "tainted"),
                    Query(f"max(muster_tainter_nodes_draining{{{T}}})", "draining"),
                    Query(f"max(muster_tainter_nodes_under_repair{{{T}}})", "under repair"),
                    Query(f'max(muster_tainter_ipus_quarantined{{{T},state="held"}})', "IPUs in quarantine"),
                    Query(f'max(muster_tainter_ipus_quarantined{{{T},state="withheld"}})', "IPUs withheld"),
                ],
                "Nodes and IPUs out of use now. Draining for hours: a PodDisruptionBudget blocks the eviction.",
                colours={"tainted": HELD, "draining": WITHHELD, "under repair": WARN, "IPUs withheld": UNKNOWN},
                width=8,
                decimals=0,
            ),
        ],
        "Faults and taints over time",
        [
            events(
                "Faults",
                T,
                {"{{step}}": "muster_tainter_fault_transitions_total"},
                "`over`: resolved, but held because the node is flapping. `raised`: occurred again while it was open.",
                colours={"opened": FAIL, "raised": WITHHELD, "over": HELD, "closed": PASS},
                width=8,
            ),
            graph(
                "Flaps: faults opened within an hour",
                [
                    Query(
                        "topk(10, "
                        + rises("muster_tainter_fault_transitions_total", f'{T},step="opened"', "check", "1h")
                        + ")",
                        "{{check}}",
                    )
                ],
                "By check. A check far above its usual level: an incident, or a threshold that is too strict.",
                width=8,
            ),
            events(
                "Taints",
                T,
                {
                    "{{what}}": "muster_tainter_taint_changes_total",
                    "put back": "muster_tainter_taints_put_back_total",
                },
                "`put back`: another controller had dropped them. If this continues, add it to listedControllers.",
                colours={"set": HELD, "removed": PASS, "put back": WITHHELD},
                width=8,
            ),
        ],
        "Heavy checks",
        [
            graph(
                "Tests",
                [
                    Query(f"sum(max by (check) (muster_tainter_tests_running{{{T}}}))", "running"),
                    Query(f"sum(max by (check) (muster_tainter_tests_waiting{{{T}}}))", "waiting"),
                    Query(f"max(muster_tainter_tests_cap{{{T}}})", "cap"),
                    Query(f"max(muster_tainter_tests_beyond_coverage{{{T}}})", "not tested for too long"),
                    Query(f"max(muster_tainter_tests_short_of_places{{{T}}})", "idle, without a free slot"),
                ],
                "Idle nodes without a free slot: raise testing.atOnce. Not tested for too long, but none idle: the "
                "nodes are always busy.",
                colours={"running": HELD, "waiting": SKIP, "cap": PASS, "not tested for too long": WARN},
                width=8,
                decimals=0,
            ),
            events(
                "Requests and answers",
                T,
                {
                    "asked": "muster_tainter_tests_asked_total",
                    "{{verdict}}": "muster_tainter_tests_answered_total",
                },
                "`none`: the agent never answered.",
                colours={"asked": SKIP, "FAIL": FAIL, "WARN": WARN, "UNKNOWN": UNKNOWN, "PASS": PASS, "none": WITHHELD},
                width=8,
            ),
            events(
                "Evictions and repairs",
                T,
                {
                    "eviction {{result}}": "muster_tainter_evictions_total",
                    "repair {{result}}": "muster_tainter_repair_attempts_total",
                },
                "Only with policies that drain or repair. `refused`: by a PodDisruptionBudget; it is retried.",
                width=8,
            ),
        ],
        "The process",
        [
            events(
                "Writes",
                T,
                {"{{what}}": "muster_tainter_writes_total"},
                "Successful writes. None while nothing changes.",
                width=6,
            ),
            events(
                "Writes that failed",
                T,
                {
                    "{{what}}: {{reason}}": "muster_tainter_write_errors_total",
                    "conflicts (409)": "muster_tainter_conflicts_total",
                    "invalid NodeHealths": "muster_tainter_healths_unusable_total",
                },
                "Conflicts are normal under load. Persistent errors: missing permissions (`forbidden`), or the API "
                "server.",
                width=6,
            ),
            graph(
                "Queues",
                [Query(f"max by (queue) (muster_tainter_queue_depth{{{T}}})", "{{queue}}")],
                "`urgent`: nodes with faults, processed first. `events`: Events and conditions, written after the "
                "taints.",
                width=6,
                decimals=0,
            ),
            graph(
                "Sources",
                [
                    Query(f"min by (source) (muster_tainter_source_up{{{T}}})", "{{source}} answers"),
                    Query(
                        f"sum by (source, what) (rate(muster_tainter_source_lines_total{{{T}}}[$__rate_interval]))",
                        "{{source}} {{what}}/s",
                    ),
                ],
                "Only with a source in the policy: 1 while it answers, and its lines or series per second. `homeless`: "
                "of nodes that do not exist.",
                width=6,
            ),
        ],
    ]
    return assemble(
        "muster-tainter",
        "Muster / Tainter",
        "The tainter itself: latency of each hop, budgets, withheld taints, flapping faults, and its own health.",
        rows,
        [variable("namespace", "muster_tainter_leader", means="where agents and tainter run")],
    )
