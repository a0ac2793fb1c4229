"""Schemas of the groups `health` and `hacking`: the bad signs that a run is watched for, and what happens then."""

from __future__ import annotations

from dataclasses import dataclass

from practicum.config.fields import at_least, between, one_of


@dataclass
class HealthSettings:
    """Thresholds of the health monitor. A finding at `_warn` is reported; one at `_act` is acted on."""

    action: str = one_of(("warn", "adjust", "stop"), "warn")
    """`warn`: report; `adjust`: also lower the learning rate or the clip range; `stop`: end the run."""
    repeat_every: int = at_least(1, 10)
    """Steps before a finding that persists is reported again."""
    cooldown: int = at_least(1, 20)
    """Steps before the same remedy is applied again."""
    max_adjustments: int = at_least(0, 3)
    """Remedies applied over the whole run, at most."""
    smooth: int = at_least(1, 5)
    """Steps that noisy metrics are averaged over."""
    saturated: float = at_least(0, 0.9)
    """Success rate from which a flat reward or a low entropy is no bad sign."""
    reward_flat: float = at_least(0, 0.2)
    """Smallest rise of the reward that counts, in standard deviations of the episodes' rewards."""
    reward_flat_window: int = at_least(3, 60)
    """Steps that the rise is measured over, at most."""
    reward_flat_after: int = at_least(3, 30)
    """Steps before the reward is judged."""
    reward_swing: float = at_least(0, 1.0)
    """Size of a swing of the reward, in standard deviations of the episodes' rewards."""
    reward_swing_window: int = at_least(6, 30)
    """Steps that swings are counted over."""
    reward_swings_warn: int = at_least(0, 3)
    """Swings in the window that are reported."""
    reward_swings_act: int = at_least(0, 5)
    """Swings in the window that are acted on."""
    success_fall: float = between(0, 1, 0.5)
    """Share of its best step that the success rate must have fallen below to have collapsed."""
    kl_warn: float = at_least(0, 0.1)
    """KL to the reference policy (or of one update, where there is no reference) that is reported."""
    kl_act: float = at_least(0, 0.5)
    """KL that is acted on."""
    entropy_share: float = at_least(0, 0.1)
    """Share of the first steps' entropy below which there is a warning."""
    entropy_floor: float = at_least(0, 0.002)
    """Entropy in nats per token below which sampling no longer explores."""
    clip_fraction_warn: float = at_least(0, 0.3)
    """Share of tokens at the clip range that is reported."""
    clip_fraction_act: float = at_least(0, 0.6)
    """Share of tokens at the clip range that is acted on."""
    dead_groups_warn: float = at_least(0, 0.9)
    """Share of groups whose rewards do not differ that is reported."""
    dead_groups_act: float = at_least(0, 0.99)
    """Share of groups whose rewards do not differ that is acted on."""
    repetition_warn: float = at_least(0, 0.3)
    """Share of repeated 4-grams in a reply that is reported."""
    repetition_act: float = at_least(0, 0.6)
    """Share of repeated 4-grams in a reply that is acted on."""
    invalid_replies: float = between(0, 1, 0.5)
    """Share of replies that cannot be used above which most are lost: acted on where they could be used before."""
    length_clipped_warn: float = at_least(0, 0.3)
    """Share of replies cut by the token limit that is reported."""
    length_clipped_act: float = at_least(0, 0.6)
    """Share of replies cut by the token limit that is acted on."""
    mismatch_warn: float = at_least(0, 0.02)
    """Mean |engine - learner| log-prob per token that is reported."""
    mismatch_act: float = at_least(0, 0.1)
    """Mean |engine - learner| log-prob per token that is acted on."""
    errors_warn: float = at_least(0, 0.1)
    """Share of episodes without a score that is reported."""
    errors_act: float = at_least(0, 0.5)
    """Share of episodes without a score that is acted on."""
    returns_excess_warn: float = at_least(0, 0.5)
    """How far the critic's targets may be outside the range of rewards, in widths of that range, before a report."""
    returns_excess_act: float = at_least(0, 2.0)
    """How far they may be outside before it is acted on."""
    policy_loss_rise: float = at_least(0, 1.0)
    """Rise of the policy loss that is reported where the reward does not rise, in standard deviations of its noise."""
    value_loss_growth: float = at_least(1, 1.5)
    """Growth of the value loss over the window that is reported, as a factor."""
    loss_window: int = at_least(6, 30)
    """Steps that the policy loss and the value loss are judged over."""
    memory_slope: float = at_least(0, 5.0)
    """Growth of resident memory in MB per step that is reported."""
    memory_window: int = at_least(6, 30)
    """Steps that the growth is measured over."""


@dataclass
class SupervisedHealthSettings:
    """What counts as a bad sign in SFT and DPO; findings are reported and written to health.jsonl."""

    loss_flat: float = between(0, 1, 0.02)
    """Share of its first value that the training loss must have fallen by."""
    loss_flat_after: int = at_least(4, 40)
    """Updates before the training loss is judged; its first and last quarter are compared."""
    overfit_rise: float = at_least(0, 0.05)
    """Share by which the evaluation loss may be above its smallest value while the training loss falls."""
    repeat_every: int = at_least(1, 50)
    """Updates before a finding that persists is reported again."""


@dataclass
class RewardHackingSettings:
    """When the training reward and the verifier count as parted."""

    enable: bool = True
    """Whether the reward is compared with a verifier that nothing is trained on."""
    window: int = at_least(1, 5)
    """Steps averaged at the start and now."""
    alarm: float = between(-2, 2, 0.2)
    """Gap between the rise of the reward and that of the verifier (each in [-1, 1]) that raises an alarm."""
    action: str = one_of(("warn", "stop"), "warn")
    """`warn`: report; `stop`: end the run."""
    keep_top: int = at_least(0, 5)
    """Best-paid episodes kept for a person to read."""
