"""Where the checks of an agent report what happens to them."""

import msgspec


class PublicationState(msgspec.Struct, frozen=True, kw_only=True):
    """How publishing to the cluster goes. complaint: why it does not work, empty while it does; unpublished_s: age of
    the oldest change that is not published."""

    complaint: str = ""
    unpublished_s: float = 0.0


class Reporter:
    """Passes nothing on. The one of a running agent is publish.change_signal.Delivery. All of it is cheap and never
    raises: it may be called for every line of a log."""

    def report_change(self) -> None:
        """A finding or a verdict has changed."""

    def report_progress(self) -> None:
        """Only counts, texts or positions have changed."""

    def report_rerun(self) -> None:
        """A check has found what it found before."""

    def report_stream_failure(self, check: str) -> None:
        """The stream of ``check`` has broken."""

    def report_detection(self, check: str, delay_s: float) -> None:
        """``check`` has seen a sign ``delay_s`` seconds after it was written."""

    def publication(self) -> PublicationState:
        return PublicationState()


NO_REPORTER = Reporter()
