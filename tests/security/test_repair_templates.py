"""The kubelet of a taken node sets labels and annotations of its Node, which the template of a repair names."""

import pytest
from tests.tainter.repair.repair_rounds import RULES, with_repair

from muster_tainter.policy.file import PolicyError, parse_policy

SET_BY_A_KUBELET: list[tuple[str, ...]] = [
    (
        "{reset: {annotate: {a: '${label:example.com/bmc}'}}}",
        "pools[0].repair.reset",
        "label:example.com/bmc",
        "kubelet",
    ),
    ("{reset: {annotate: {a: '${label:bmc}'}}}", "label:bmc", "node-restriction.kubernetes.io", "templateKeys"),
    ("{reset: {annotate: {a: '${label:x-node-restriction.kubernetes.io/bmc}'}}}", "label:x-node-restriction"),
    ("{reset: {annotate: {a: '${label:node-restriction.kubernetes.io.example.com/bmc}'}}}", "label:node-restriction"),
    # NodeRestriction lets a kubelet write every annotation
    ("{reset: {annotate: {a: '${annotation:node-restriction.kubernetes.io/bmc}'}}}", "annotation:node-restriction"),
]


@pytest.mark.parametrize("case", SET_BY_A_KUBELET, ids=lambda case: case[0])
def test_a_template_may_have_no_key_that_a_kubelet_can_set(case: tuple[str, ...]) -> None:
    text, *facts = case
    with pytest.raises(PolicyError) as raised:
        with_repair(text)
    assert [fact for fact in facts if fact not in str(raised.value)] == []


KEYS = ["label:node-restriction.kubernetes.io/bmc", "label:bmc.node-restriction.kubernetes.io/host"]


@pytest.mark.parametrize("key", KEYS)
def test_a_template_may_have_labels_that_no_kubelet_can_set(key: str) -> None:
    assert with_repair(f"{{reset: {{annotate: {{a: '${{{key}}}'}}}}}}").pools[0].repair is not None


@pytest.mark.parametrize("kind", ["label", "annotation"])
def test_a_template_may_have_keys_that_the_policy_lists(kind: str) -> None:
    text = (
        f"{RULES}  - {{name: all, selector: {{}}, repair: {{reset: {{annotate: {{a: '${{{kind}:example.com/x}}'}}}}}}}}"
    )
    with pytest.raises(PolicyError, match=r"example\.com/x"):
        parse_policy(f"{text}\ntemplateKeys: [example.com]")
    assert parse_policy(f"{text}\ntemplateKeys: [example.com/x]").template_keys == ("example.com/x",)
    with pytest.raises(PolicyError, match=r"templateKeys\[0\]"):
        parse_policy(f"{text}\ntemplateKeys: ['a b']")
