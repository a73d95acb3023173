"IPUJobs and the IPUs that they use."

from dashboards.colours import FAIL, HELD, JUST_1, PASS, PLAIN, SKIP, WARN, WITHHELD, from_1, warns_at
from dashboards.model import Column, Object, Query, assemble, graph, rises, stat, table, variable
from dashboards.shared_panels import events

S = 'namespace=~"$namespace"'


def dashboard() -> Object:
    jobs = {"Pending": WARN, "Running": PASS, "Completed": SKIP, "Failed": FAIL}
    rows = [
        [
            stat(
                title,
                Query(f'max(muster_operator_jobs{{{S},status="{status}"}})'),
                means,
                steps=steps,
            )
            for title, status, steps, means in (
                ("Running", "Running", from_1(PASS, SKIP), "IPUJobs whose pods are running."),
                (
                    "Waiting",
                    "Pending",
                    warns_at(1),
                    "IPUJobs that wait for some of their pods. `kubectl describe ipujob NAME` shows what is missing: "
                    "IPUs, a node, an image, a partition.",
                ),
                (
                    "Failed",
                    "Failed",
                    from_1(FAIL),
                    "IPUJobs that have failed permanently, until somebody deletes them. `kubectl describe ipujob "
                    "NAME` shows the reason.",
                ),
            )
        ]
        + [
            stat(
                "IPUs used",
                Query(f"max(muster_operator_ipus_used{{{S}}})"),
                "IPUs in partitions of jobs and pods.",
            ),
            stat(
                "IPUs available",
                Query(f'max(muster_vipu_proxy_ipus{{{S},state="available"}})'),
                "IPUs that V-IPU could still allocate, as of the last change. They may be too fragmented for a job.",
                steps=((None, WARN), (1, PASS)),
            ),
            stat(
                "IPUs in quarantine",
                Query(f"max(muster_vipu_proxy_quarantined_ipus{{{S}}})"),
                "IPUs excluded from new partitions because of a fault. See ConfigMap muster-ipu-quarantine.",
                steps=from_1(HELD),
            ),
            stat(
                "Operator leads",
                Query(f"sum(muster_operator_leader{{{S}}})"),
                "One replica leads. Without a leader no job makes progress, but running jobs continue. See `kubectl "
                "get pods`.",
                steps=JUST_1,
            ),
            stat(
                "Bad controllers",
                Query(f'max(muster_vipu_proxy_controllers{{{S},entries="bad"}}) or vector(0)'),
                "Invalid entries in the list of V-IPU controllers. The proxy's log names them.",
                steps=from_1(FAIL),
            ),
        ],
        [
            graph(
                "Jobs",
                [Query(f"max by (status) (muster_operator_jobs{{{S}}})", "{{status}}")],
                "IPUJobs by STATUS. If jobs keep waiting while IPUs are available, describe one of them.",
                colours=jobs,
                stacked=True,
                width=8,
                decimals=0,
            ),
            events(
                "Job results",
                S,
                {
                    "taken on": "muster_operator_jobs_created_total",
                    "completed": "muster_operator_jobs_succeeded_total",
                    "failed": "muster_operator_jobs_failed_total",
                    "restarted": "muster_operator_job_restarts_total",
                },
                "Endless restarts: an error of the job, or a flapping node or IPU.",
                colours={"taken on": PLAIN, "completed": PASS, "failed": FAIL, "restarted": WITHHELD},
                width=8,
            ),
            graph(
                "IPUs",
                [
                    Query(f'max(muster_vipu_proxy_ipus{{{S},state="used"}})', "used"),
                    Query(f'max(muster_vipu_proxy_ipus{{{S},state="available"}})', "available"),
                    Query(f"max(muster_vipu_proxy_quarantined_ipus{{{S}}})", "in quarantine"),
                ],
                "Use of the IPUs. None available and many jobs waiting: all are in use, or too fragmented.",
                colours={"used": PLAIN, "available": PASS, "in quarantine": HELD},
                stacked=True,
                width=8,
                decimals=0,
            ),
        ],
        "Job performance",
        [
            graph(
                "Waiting",
                [
                    *_percentiles("muster_operator_job_queue_seconds", "its partitions, "),
                    *_percentiles("muster_operator_job_first_running_seconds", "its first run, "),
                ],
                "From submission until a job had all of its partitions, and until it ran. The first is the wait for "
                "IPUs, the difference that for nodes, images and the scheduler.",
                unit="s",
                width=8,
            ),
            events(
                "Restarts and moves",
                S,
                {
                    "restarted: {{cause}}": "muster_operator_job_restarts_total",
                    "moved: {{fault}}": "muster_operator_job_moves_total",
                },
                "By the cause that ended the attempt, and by the hardware fault under the job. `exit` and `oom` are "
                "errors of the job; `node` and all moves are hardware faults: see the Fleet dashboard.",
                width=8,
            ),
            graph(
                "IPU-hours",
                [
                    Query(f"{rises(metric, S, by)} / 3600", legend)
                    for metric, by, legend in (
                        ("muster_operator_ipu_seconds_used_total", "", "used"),
                        ("muster_operator_ipu_seconds_lost_total", "cause", "lost: {{cause}}"),
                        ("muster_operator_ipu_seconds_between_attempts_total", "", "between attempts"),
                    )
                ],
                "IPU-hours of running jobs; those lost when an attempt failed or moved (checkpoints are unknown and "
                "count as lost); and those spent waiting for the next attempt.",
                colours={"used": PLAIN, "between attempts": WITHHELD},
                bars=True,
                width=8,
            ),
        ],
        "V-IPU and its proxy",
        [
            graph(
                "Partitions",
                [Query(f"max by (state) (muster_vipu_proxy_partitions{{{S}}})", "{{state}}")],
                "Partitions in the tracker. `creating` or `deleting` for minutes: V-IPU does not answer. `parked` "
                "partitions hold quarantined IPUs.",
                colours={"creating": WARN, "active": PASS, "deleting": WITHHELD, "parked": HELD},
                stacked=True,
                width=8,
                decimals=0,
            ),
            graph(
                "V-IPU latency",
                [
                    Query(
                        "histogram_quantile(0.99, sum by (le, call) "
                        f"(rate(muster_vipu_proxy_vipu_seconds_bucket{{{S}}}[$__rate_interval]))) >= 0",
                        "{{call}}, 99 %",
                    )
                ],
                "By call. Creating a partition of many IPUs takes tens of seconds; a query takes none.",
                unit="s",
                width=8,
            ),
            events(
                "Rejected and unanswered calls",
                S,
                {
                    "V-IPU {{call}}: {{kind}}": "muster_vipu_proxy_vipu_errors_total",
                    "proxy: {{why}}": "muster_vipu_proxy_refusals_total",
                    "partitions vanished": "muster_vipu_proxy_vanished_total",
                },
                "`unreachable`: V-IPU or the network is down. `vanished`: somebody removed a partition without the "
                "proxy; its job is restarted.",
                width=8,
            ),
        ],
        "The operator",
        [
            graph(
                "Reconcile duration",
                _percentiles("muster_operator_reconcile_seconds"),
                "How long the operator takes to reconcile a job. Seconds: the API server or the proxy is slow.",
                unit="s",
                width=6,
            ),
            graph(
                "Queue",
                [Query(f"max(muster_operator_queue_depth{{{S}}})", "jobs that wait for a reconcile")],
                "It rises briefly after a start or a burst, and falls to 0.",
                width=6,
                decimals=0,
            ),
            events(
                "Writes",
                S,
                {"{{kind}}": "muster_operator_writes_total"},
                "Successful writes by kind. None while nothing changes.",
                width=6,
            ),
            events(
                "Failed calls",
                S,
                {
                    "reconcile: {{reason}}": "muster_operator_reconcile_errors_total",
                    "proxy {{call}}: {{reason}}": "muster_operator_proxy_errors_total",
                    "conflicts (409)": "muster_operator_conflicts_total",
                },
                "Each is retried with back-off. A persistent reason is in the operator's log with its job.",
                width=6,
            ),
        ],
        [
            table(
                "Answers of the admission webhooks",
                [
                    Query(
                        rises("muster_operator_reviews_total", S, "webhook, answer", "$__range"),
                        column="answers",
                    )
                ],
                "Over the time shown. kubectl showed the user the reason of each `refused` one.",
                columns={"webhook": Column(), "answer": Column(), "answers": Column(decimals=0)},
                sort="answers",
                width=8,
                height=7,
            ),
            table(
                "Calls of the proxy",
                [Query(rises("muster_operator_proxy_calls_total", S, "call", "$__range"), column="calls")],
                "Over the time shown: queries of free IPUs, partitions created and deleted.",
                columns={"call": Column(), "calls": Column(decimals=0)},
                sort="calls",
                width=8,
                height=7,
            ),
            stat(
                "Unreadable entries of the tracker",
                Query(f"max(muster_vipu_proxy_tracker_unreadable{{{S}}})"),
                "Somebody edited ConfigMap ipu-partitions-tracker and made an entry invalid. The proxy does not "
                "change the entry or its IPUs; its log names it.",
                steps=from_1(FAIL),
                width=8,
                height=7,
            ),
        ],
    ]
    return assemble(
        "muster-ipujobs",
        "Muster / IPUJobs",
        "IPUJobs, their IPUs, the operator and the V-IPU proxy.",
        rows,
        [variable("namespace", "muster_operator_leader", means="where operator and proxy run")],
    )


def _percentiles(histogram: str, of: str = "") -> list[Query]:
    per_s = f"sum by (le) (rate({histogram}_bucket{{{S}}}[$__rate_interval]))"
    return [Query(f"histogram_quantile({part / 100}, {per_s}) >= 0", f"{of}{part} %") for part in (50, 99)]
