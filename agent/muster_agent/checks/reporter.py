"""Receives reports of the agent's checks."""

import msgspec


class PublicationState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of publication to the cluster.

    complaint:     why publication fails; empty if it works
    unpublished_s: age of the oldest change that is not published
    """

    complaint: str = ""
    unpublished_s: float = 0.0


class Reporter:
    """Ignores all reports; publish.change_signal.Delivery passes them on. All methods are cheap enough to call for each
    line of a log, and never raise."""

    def report_change(self) -> None:
        """A finding or a verdict has changed."""

    def report_progress(self) -> None:
        """Only counts, texts or positions have changed."""

    def report_rerun(self) -> None:
        """A check has run with the same findings as before."""

    def report_stream_failure(self, check: str) -> None:
        """The stream of ``check`` has failed."""

    def report_detection(self, check: str, delay_s: float) -> None:
        """``check`` has detected a sign ``delay_s`` seconds after it was logged."""

    def publication(self) -> PublicationState:
        return PublicationState()


NO_REPORTER = Reporter()
