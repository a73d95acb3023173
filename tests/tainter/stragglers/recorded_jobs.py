"""Recorded times of jobs of others (shared data, traces)."""

import csv
import io

from tests.shared_data import SharedData


def mini_batches(shared_data: SharedData, number: int) -> list[list[float]]:
    """Of Alibaba's job ``number``: a row for each worker, as long as the shortest."""
    rows: dict[int, list[float]] = {}
    for row in csv.DictReader(io.StringIO(shared_data.text(f"traces/alibaba_minibatch_job{number}.csv"))):
        rows.setdefault(int(row["worker"]), []).append(float(row["batch_time_norm"]))
    shortest = min(map(len, rows.values()))
    return [rows[worker][:shortest] for worker in sorted(rows)]
