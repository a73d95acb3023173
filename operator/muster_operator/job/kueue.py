"""Labels of Kueue that the operator reads or sets; see docs/ipujob.md for what an integration finds where."""

from collections.abc import Mapping

QUEUE = "kueue.x-k8s.io/queue-name"  # of a job
POD_SET = "kueue.x-k8s.io/podset"  # of a pod
LAUNCHER_SET = "launcher"


def launcher_pod_set(template_labels: Mapping[str, str]) -> dict[str, str]:
    """The launcher's pod set, where an integration wrote that of the workers into the template that both share: by this
    label Kueue counts the pods of a set, and assigns each to a topology domain."""
    return {POD_SET: LAUNCHER_SET} if POD_SET in template_labels else {}
