"""A device's policy decides what leaves it, whatever the server asks for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.deploy.policy import FILE, Forbidden, Policy, read_policy
from partita.device.roles import Role
from partita.errors import ConfigError
from partita.methods import registry
from partita.methods.method import Method
from partita.partition import Partition, Personalization
from partita.protocol import Evaluate, Finetune, Order, Pace, Reply, Stage, Start, Update

PACE = Pace(lr=0.1, epochs=1)
UPDATE = Order(
    stage=Stage.PERSONALIZED,
    round=0,
    device="ann",
    work=Update(personal=PACE, shared=PACE),
    shared={"body.weight": torch.zeros(2, 3), "steps": torch.zeros(1, dtype=torch.int32)},
    start=Start(digest="", personal=None, frozen=""),
)
EVALUATION = replace(UPDATE, work=Evaluate(model="personal"))


def roles(*, max_grad_norm: float = 0.0) -> dict[Stage, Role]:
    method = Method(local=registry.find(registry.REFERENCE).update, max_grad_norm=max_grad_norm)
    own = Personalization(Partition(torch.nn.Linear(1, 1), shared="*"))
    return {stage: Role(personalization=own, method=method) for stage in Stage}


def test_without_a_policy_everything_is_allowed_that_an_order_can_ask_for(tmp_path: Path) -> None:
    policy = read_policy(tmp_path)

    finetuning = Finetune(personal=Pace(lr=0.1, epochs=5))
    for order in (UPDATE, EVALUATION, replace(UPDATE, work=finetuning)):
        policy.check_order(order, 1, roles())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"names": ("head.*", "steps")}, "a change of `body.weight`"),
        # Six float32 values, and one integer that changes by int64: 24 + 8 bytes.
        ({"max_bytes": 31}, "31 bytes in a round, and the change has 32"),
        ({"stages": ("pretrained",)}, "the stage `personalized`"),
        ({"min_cohort": 5}, "a cohort of at least 5, and there are 4"),
        ({"require_clipping": True}, "asks for clipping"),
    ],
)
def test_an_update_against_the_policy_is_forbidden(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(Forbidden, match=reason):
        Policy(**settings).check_order(UPDATE, 4, roles())


@pytest.mark.parametrize(
    "settings",
    [{"names": ("body.*", "steps")}, {"max_bytes": 32}, {"min_cohort": 4}, {"stages": ("personalized",)}],
)
def test_an_update_within_the_policy_is_allowed(settings: dict[str, Any]) -> None:
    Policy(**settings).check_order(UPDATE, 4, roles())


@pytest.mark.parametrize(
    "work",
    [
        Update(personal=PACE, shared=Pace(lr=0.1, epochs=10**9)),
        Update(personal=Pace(lr=0.1, steps=10**9), shared=PACE),
        Finetune(personal=Pace(lr=0.1, epochs=10**9)),
    ],
)
def test_no_server_can_keep_a_device_busy_for_longer_than_its_own_config_says(
    work: Update | Finetune,
) -> None:
    with pytest.raises(Forbidden, match="1000000000"):
        Policy().check_order(replace(UPDATE, work=work), 4, roles())


def test_clipping_that_is_required_and_done_is_allowed() -> None:
    Policy(require_clipping=True).check_order(UPDATE, 1, roles(max_grad_norm=1.0))


def test_nothing_of_the_shared_part_leaves_in_an_evaluation_so_only_its_stage_is_checked() -> None:
    Policy(names=(), max_bytes=1, min_cohort=9, require_clipping=True).check_order(EVALUATION, 1, roles())
    with pytest.raises(Forbidden):
        Policy(stages=()).check_order(EVALUATION, 1, roles())


def test_a_measure_that_may_not_leave_is_forbidden() -> None:
    reply = Reply(
        device="ann", weight=1, change=None, metrics={"test": {"loss": 0.1, "accuracy": 0.9, "reason": None}}
    )

    Policy(metrics=("loss", "accuracy")).check_reply(EVALUATION, reply)
    with pytest.raises(Forbidden, match="the measure `accuracy`"):
        Policy(metrics=("loss",)).check_reply(EVALUATION, reply)


def test_a_reply_with_other_tensors_than_the_shared_part_is_never_sent() -> None:
    right = {name: torch.zeros_like(tensor) for name, tensor in UPDATE.shared.items()}
    reply = Reply(device="ann", weight=1, change=right, metrics={})

    Policy().check_reply(UPDATE, reply)
    for order, change in (
        (UPDATE, {**right, "head.bias": torch.zeros(1)}),
        (EVALUATION, right),
        (UPDATE, None),
    ):
        with pytest.raises(Forbidden, match="other tensors"):
            Policy().check_reply(order, replace(reply, change=change))


def test_a_policy_is_read_from_the_home(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        'names = ["body.*"]\nmax_bytes = 5\nmetrics = ["loss"]\nrequire_clipping = true\n'
    )

    assert read_policy(tmp_path) == Policy(
        names=("body.*",), max_bytes=5, metrics=("loss",), require_clipping=True
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nmaes = []", "Unknown key `nmaes`.*Did you mean `names`"),
        ('names = "x"', "`names` must be"),
        ("max_bytes = true", "`max_bytes` must be"),
        ("min_cohort = -1", "`min_cohort` must be 0 or above"),
        ('stages = ["served"]', "`stages` must be among"),
        ("names =", "Cannot read"),
    ],
)
def test_a_policy_with_a_mistake_is_one_clear_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / FILE).write_text(text)

    with pytest.raises(ConfigError, match=reason):
        read_policy(tmp_path)


def test_the_policy_in_docs_how_to_deploy_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/deploy.md").read_text()
    _, _, text = page.partition("```toml\nnames")
    (tmp_path / FILE).write_text(f"names{text.partition('```')[0]}")

    policy = read_policy(tmp_path)

    assert policy.min_cohort == 10
    assert policy.require_clipping
    assert policy.stages == ("personalized", "finetuned")
