"""What the checks of a test have reported."""

import asyncio

from muster_agent.checks.reporter import PublicationState, Reporter


class RecordingReporter(Reporter):
    """complaint: what is wrong with publishing, as the test has it; changed: set by each change."""

    def __init__(self) -> None:
        self.changes = self.progress = self.reruns = 0
        self.stream_failures: list[str] = []
        self.complaint = ""
        self.changed = asyncio.Event()

    def report_change(self) -> None:
        self.changes += 1
        self.changed.set()

    def report_progress(self) -> None:
        self.progress += 1

    def report_rerun(self) -> None:
        self.reruns += 1

    def report_stream_failure(self, check: str) -> None:
        self.stream_failures.append(check)

    def publication(self) -> PublicationState:
        return PublicationState(complaint=self.complaint)
