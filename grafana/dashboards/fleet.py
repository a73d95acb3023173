"The state of the fleet at a glance."

from dashboards.colours import FAIL, HELD, PASS, SKIP, UNKNOWN, WARN, WITHHELD, from_1, warns_at
from dashboards.model import Column, Object, Query, assemble, graph, rises, stat, table, variable
from dashboards.shared_panels import budgets, lowest, new_taints, withheld, worst_first

T = 'namespace=~"$namespace"'
A = 'namespace=~"$namespace",node=~"$node",check=~"$check"'
_STEPS = 'muster_step_seconds_%s{namespace!=""}[$__rate_interval]'
STEP_S = (
    f"sum by (namespace, job_name, rank) (rate({_STEPS % 'sum'})) / "
    f"sum by (namespace, job_name, rank) (rate({_STEPS % 'count'}) > 0)"
)
VERDICT = 'sum by (check) (muster_agent_check_verdict{%s,verdict="%s"})'


def dashboard() -> Object:
    rows = [
        [
            stat(
                "Failing nodes",
                Query(f'max(muster_tainter_nodes{{{T},health="fail"}}) or vector(0)'),
                "Nodes with a check that reports FAIL. They are tainted unless the rule only creates an Event, a "
                "budget withholds the taint, or Muster is paused. For the cause see the list below, or `muster "
                "status`.",
                steps=from_1(FAIL),
            ),
            stat(
                "Tainted",
                Query(f"sum(max by (taint) (muster_tainter_taints{{{T}}})) or vector(0)"),
                "Taints of Muster on nodes: no new pods are scheduled there. For the reason: `muster explain NODE`.",
                steps=from_1(HELD),
            ),
            withheld(
                T,
                "Nodes with a fault whose taint is withheld: a budget is used up, or Muster is paused. They still "
                "receive work. If the faults are real, raise the budget; if there are many, look for a common cause.",
            ),
            stat(
                "Warned",
                Query(f'max(muster_tainter_nodes{{{T},health="warn"}}) or vector(0)'),
                "Nodes where a check reports WARN. Muster sets no taint; look at them during working hours.",
                steps=warns_at(1),
            ),
            stat(
                "Unknown",
                Query(f'max(muster_tainter_nodes{{{T},health="unknown"}}) or vector(0)'),
                "Nodes whose agent is silent, or where a check could not run. By default Muster sets no taint.",
                steps=from_1(UNKNOWN),
            ),
            stat(
                "Silent agents",
                Query(f"max(muster_tainter_agents_silent{{{T}}})"),
                "Nodes without a ready agent for longer than the grace. See `kubectl get pods -n autopilot -o wide`.",
                steps=from_1(UNKNOWN),
            ),
            stat(
                "Incidents",
                Query(f"sum(max by (check) (muster_tainter_incidents{{{T}}})) or vector(0)"),
                "The same fault on many nodes at once, e.g. from a switch, a power feed or a driver update. Look for "
                "what the nodes share first.",
                steps=from_1(FAIL),
            ),
            new_taints(
                T,
                "Whether Muster is paused: then it starts no new taint, drain or repair, but recovery continues. "
                "`muster resume` ends the pause.",
            ),
        ],
        [
            worst_first(
                "What is wrong now",
                Query(
                    "topk(200, sum by (verdict, node, check, reason) "
                    f'(muster_agent_findings{{{A},verdict=~"FAIL|WARN|UNKNOWN"}}))',
                    column="findings",
                ),
                "Open findings by node, FAIL first; at most 200 rows. Click a node for its dashboard.",
                columns={
                    "node": Column(to_node=True),
                    "check": Column(width=110),
                    "reason": Column(),
                    "findings": Column(width=90),
                },
                width=14,
                height=12,
            ),
            graph(
                "Nodes that are not PASS",
                [
                    Query(
                        f'max by (health) (muster_tainter_nodes{{{T},health!="pass"}})',
                        "{{health}}",
                    )
                ],
                "Nodes by the health that their agents report; `none`: no report yet. If many nodes change at once, "
                "there is one cause.",
                colours={"fail": FAIL, "warn": WARN, "unknown": UNKNOWN, "none": SKIP},
                stacked=True,
                width=10,
                height=12,
                decimals=0,
            ),
        ],
        "Taints and budgets",
        [
            table(
                "Open faults",
                [Query(f"max by (rule, class) (muster_tainter_faults_open{{{T}}})", column="faults")],
                "Open faults by rule and by class: application restart, reset, reboot, replacement, or inspection by "
                "a person.",
                columns={"rule": Column(), "class": Column(), "faults": Column(width=80)},
                sort="faults",
                width=7,
            ),
            budgets(
                T,
                "Usage and remaining room of each budget. A failure domain is listed while it is full or nodes wait "
                "there. At left 0, further taints are withheld.",
            ),
            graph(
                "Faults and taints",
                [
                    Query(
                        rises("muster_tainter_fault_transitions_total", f'{T},check=~"$check"', "step"),
                        "fault {{step}}",
                    ),
                    Query(
                        rises("muster_tainter_taint_changes_total", T, "what"),
                        "taint {{what}}",
                    ),
                ],
                "Changes over time. Many opened at once: an incident. The same node repeatedly: it is flapping, and "
                "is held longer each time.",
                colours={"fault opened": FAIL, "fault closed": PASS, "taint set": HELD, "taint removed": SKIP},
                bars=True,
                width=9,
            ),
        ],
        "Checks",
        [
            table(
                "Nodes by check",
                [
                    Query(VERDICT % (A, "FAIL"), column="FAIL"),
                    Query(VERDICT % (A, "WARN"), column="WARN"),
                    Query(VERDICT % (A, "UNKNOWN"), column="UNKNOWN"),
                    Query(VERDICT % (A, "PASS"), column="PASS"),
                    Query(
                        f"sum by (check) (muster_agent_check_age_seconds{{{A}}} > bool 3 * "
                        f"muster_agent_check_period_seconds{{{A}}})",
                        column="stale",
                    ),
                ],
                "Number of nodes by verdict. UNKNOWN on all nodes: a tool is missing or a setting is wrong. Stale: "
                "the result is older than three periods.",
                columns={
                    "check": Column(),
                    "FAIL": Column(width=80, steps=from_1(FAIL, SKIP)),
                    "WARN": Column(width=80, steps=from_1(WARN, SKIP)),
                    "UNKNOWN": Column(width=100, steps=from_1(UNKNOWN, SKIP)),
                    "PASS": Column(width=80, steps=from_1(PASS, SKIP)),
                    "stale": Column(width=80, steps=from_1(WITHHELD, SKIP)),
                },
                sort="FAIL",
                width=10,
                height=10,
            ),
            table(
                "Heavy checks",
                [
                    Query(f"max by (check) (muster_tainter_tests_running{{{T}}})", column="running"),
                    Query(f"max by (check) (muster_tainter_tests_waiting{{{T}}})", column="waiting"),
                    Query(f"max by (check) (muster_tainter_tests_oldest_wait_seconds{{{T}}})", column="longest wait"),
                ],
                "Checks that need an idle node: how many nodes run one, how many are due, and the longest wait. A "
                "wait of a week: that node is never idle, or the limit is too low.",
                columns={
                    "check": Column(),
                    "running": Column(width=80),
                    "waiting": Column(width=80),
                    "longest wait": Column(unit="s", width=110, steps=((None, PASS), (7 * 86400, WARN)), decimals=0),
                },
                sort="longest wait",
                width=7,
                height=10,
            ),
            lowest(
                "Slowest PCIe, host to device",
                f'muster_agent_measured_bytes_per_second{{check="pciebw",measurement="to_device",{T},node=~"$node"}}',
                "The 20 slowest GPUs in the last runs. Below 4 GB/s the check fails. If a GPU is far below the "
                "others in its node, its link trained down: reseat it, or see `pcielink`.",
                called="bandwidth",
                value=Column(unit="Bps", width=110, steps=((None, FAIL), (4e9, PASS))),
                width=7,
                height=10,
            ),
        ],
        "Jobs as sensors",
        [
            graph(
                "Pods that failed, by kind",
                [Query(rises("muster_tainter_outcomes_failures_total", T, "kind"), "{{kind}}")],
                "Pods that Kubernetes rejected, or that ended with an error, by kind of failure. Most kinds are the "
                "jobs' own; Muster compares nodes within each job. DeviceAllocation and KubeletAdmission are a node's.",
                bars=True,
                width=8,
            ),
            graph(
                "Nodes blamed for failed pods",
                [Query(rises("muster_tainter_outcomes_proven_total", T, "kind", "1d"), "{{kind}}")],
                "Proofs within a day that pods fail more often on a node than elsewhere. The nodes are in the list "
                "above, with the check podoutcomes.",
                bars=True,
                width=4,
                decimals=0,
            ),
            table(
                "Jobs by their step times",
                [Query(f"max by (verdict) (muster_tainter_step_time_jobs{{{T}}})", column="jobs")],
                "Jobs with step times by the verdict on their last window. node: a rank is slow. stage: a pipeline "
                "stage has more work than the others. stalled: no rank has "
                "completed a step. For other verdicts see the tainter's log. Empty without sources.stepTimes.",
                columns={"verdict": Column(), "jobs": Column(width=70, steps=from_1(PASS, SKIP))},
                sort="jobs",
                width=5,
            ),
            graph(
                "Slowest ranks",
                [Query(f"topk(10, {STEP_S})", "{{namespace}}/{{job_name}} rank {{rank}}")],
                "Mean seconds of a step, of the ten slowest ranks of all jobs that print or serve muster_step_seconds.",
                unit="s",
                width=7,
            ),
        ],
    ]
    return assemble(
        "muster-fleet",
        "Muster / Fleet",
        "What is wrong in the fleet now, what Muster did about it, and what is withheld.",
        rows,
        [
            variable("namespace", "muster_tainter_leader", means="where Muster runs"),
            variable("node", "muster_agent_info"),
            variable("check", "muster_agent_check_verdict"),
        ],
    )
