"""IPUJobs, and the IPUs that they run on."""

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
                ("Running", "Running", from_1(PASS, SKIP), "IPUJobs whose pods run."),
                (
                    "Waiting",
                    "Pending",
                    warns_at(1),
                    "IPUJobs without all of their pods. `kubectl describe ipujob NAME` says what is waited for: IPUs, "
                    "a node, an image, a partition.",
                ),
                (
                    "Failed",
                    "Failed",
                    from_1(FAIL),
                    "IPUJobs that have failed for good, until somebody deletes them. `kubectl describe ipujob NAME` "
                    "says why.",
                ),
            )
        ]
        + [
            stat(
                "IPUs used",
                Query(f"max(muster_operator_ipus_used{{{S}}})"),
                "IPUs in partitions of jobs.",
            ),
            stat(
                "IPUs available",
                Query(f'max(muster_vipu_proxy_ipus{{{S},state="available"}})'),
                "What V-IPU could still give, as of the last change. It may be in pieces too small for a job.",
                steps=((None, WARN), (1, PASS)),
            ),
            stat(
                "IPUs in quarantine",
                Query(f"max(muster_vipu_proxy_quarantined_ipus{{{S}}})"),
                "IPUs kept out of new partitions for a fault. Which: ConfigMap muster-ipu-quarantine.",
                steps=from_1(HELD),
            ),
            stat(
                "Operator leads",
                Query(f"sum(muster_operator_leader{{{S}}})"),
                "One replica leads. With none no job goes on: `kubectl get pods` shows what ails it; jobs that run do "
                "not stop.",
                steps=JUST_1,
            ),
            stat(
                "Bad controllers",
                Query(f'max(muster_vipu_proxy_controllers{{{S},entries="bad"}}) or vector(0)'),
                "Entries of the list of V-IPU controllers that make no sense. The proxy's log names them.",
                steps=from_1(FAIL),
            ),
        ],
        [
            graph(
                "Jobs",
                [Query(f"max by (status) (muster_operator_jobs{{{S}}})", "{{status}}")],
                "IPUJobs by STATUS. Waiting jobs that do not get fewer while IPUs are available: look at one of them.",
                colours=jobs,
                stacked=True,
                width=8,
                decimals=0,
            ),
            events(
                "What came of them",
                S,
                {
                    "taken on": "muster_operator_jobs_created_total",
                    "completed": "muster_operator_jobs_succeeded_total",
                    "failed": "muster_operator_jobs_failed_total",
                    "restarted": "muster_operator_job_restarts_total",
                },
                "Restarts without end: the job's own error, or a node or an IPU that comes and goes.",
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
                "Who has the IPUs. None available and many waiting jobs: all are at work, or in pieces too small.",
                colours={"used": PLAIN, "available": PASS, "in quarantine": HELD},
                stacked=True,
                width=8,
                decimals=0,
            ),
        ],
        "How jobs fare",
        [
            graph(
                "Waiting",
                [
                    *_percentiles("muster_operator_job_queue_seconds", "its partitions, "),
                    *_percentiles("muster_operator_job_first_running_seconds", "its first run, "),
                ],
                "From submission until a job had all of its partitions, and until it ran. The first is room on "
                "the IPUs, what lies between nodes, images and the scheduler.",
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
                "By what ended the attempt, and by what was bad under the job. `exit` and `oom` are the job's own, "
                "`node` and all moves the hardware's: the fleet's dashboard shows which.",
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
                "What running jobs used; of it, what came to nothing as the attempt failed or moved (what a checkpoint "
                "saved is not known, and counts as lost); and what jobs waited for their next attempt.",
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
                "As the tracker has them. `creating` or `deleting` for minutes: V-IPU does not answer. `parked` ones "
                "hold IPUs that are in quarantine.",
                colours={"creating": WARN, "active": PASS, "deleting": WITHHELD, "parked": HELD},
                stacked=True,
                width=8,
                decimals=0,
            ),
            graph(
                "How long V-IPU takes",
                [
                    Query(
                        "histogram_quantile(0.99, sum by (le, call) "
                        f"(rate(muster_vipu_proxy_vipu_seconds_bucket{{{S}}}[$__rate_interval]))) >= 0",
                        "{{call}}, 99 %",
                    )
                ],
                "By call. A partition of many IPUs takes tens of seconds; a query none.",
                unit="s",
                width=8,
            ),
            events(
                "Refused and unanswered",
                S,
                {
                    "V-IPU {{call}}: {{kind}}": "muster_vipu_proxy_vipu_errors_total",
                    "proxy: {{why}}": "muster_vipu_proxy_refusals_total",
                    "partitions vanished": "muster_vipu_proxy_vanished_total",
                },
                "`unreachable`: V-IPU or the way there. `vanished`: somebody took a partition away behind the proxy; "
                "its job is restarted.",
                width=8,
            ),
        ],
        "The operator",
        [
            graph(
                "One look at a job",
                _percentiles("muster_operator_reconcile_seconds"),
                "How long the operator takes to look at a job and to write what follows. Seconds: the API server or "
                "the proxy is slow.",
                unit="s",
                width=6,
            ),
            graph(
                "Queue",
                [Query(f"max(muster_operator_queue_depth{{{S}}})", "jobs that wait to be looked at")],
                "It rises for a moment after a start or a burst, and falls to 0.",
                width=6,
                decimals=0,
            ),
            events(
                "Writes",
                S,
                {"{{kind}}": "muster_operator_writes_total"},
                "What the API server took, by kind. None while nothing happens.",
                width=6,
            ),
            events(
                "Calls that went wrong",
                S,
                {
                    "look at a job: {{reason}}": "muster_operator_reconcile_errors_total",
                    "proxy {{call}}: {{reason}}": "muster_operator_proxy_errors_total",
                    "decided again (409)": "muster_operator_conflicts_total",
                },
                "Each is tried again, later each time. A reason that lasts is in the operator's log with its job.",
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
                "Over the time shown. `refused` ones were told why by kubectl.",
                columns={"webhook": Column(), "answer": Column(), "answers": Column(decimals=0)},
                sort="answers",
                width=8,
                height=7,
            ),
            table(
                "Calls of the proxy",
                [Query(rises("muster_operator_proxy_calls_total", S, "call", "$__range"), column="calls")],
                "Over the time shown: asked what is free, partitions taken and freed.",
                columns={"call": Column(), "calls": Column(decimals=0)},
                sort="calls",
                width=8,
                height=7,
            ),
            stat(
                "Unreadable entries of the tracker",
                Query(f"max(muster_vipu_proxy_tracker_unreadable{{{S}}})"),
                "Somebody has edited ConfigMap ipu-partitions-tracker so that an entry makes no sense. The proxy "
                "leaves it alone, and its IPUs too; its log names it.",
                steps=from_1(FAIL),
                width=8,
                height=7,
            ),
        ],
    ]
    return assemble(
        "muster-ipujobs",
        "Muster / IPUJobs",
        "IPUJobs, the IPUs that they run on, the operator and the V-IPU proxy.",
        rows,
        [variable("namespace", "muster_operator_leader", means="where operator and proxy run")],
    )


def _percentiles(histogram: str, of: str = "") -> list[Query]:
    per_s = f"sum by (le) (rate({histogram}_bucket{{{S}}}[$__rate_interval]))"
    return [Query(f"histogram_quantile({part / 100}, {per_s}) >= 0", f"{of}{part} %") for part in (50, 99)]
