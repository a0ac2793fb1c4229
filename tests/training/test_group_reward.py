"""Rewards of a group seen together: the hook, its record, and htdag's diversity bonus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from practicum.config.resolve import resolve_train
from practicum.data.store import decode_episode, encode_episode
from practicum.environment import Action
from practicum.environments.htdag.group_rewards import plan_diversity, plan_features, similarity
from practicum.environments.htdag.replay import plan_of
from practicum.errors import UserError
from practicum.task import Task
from practicum.training.dry_run import check_train
from practicum.training.estimators import EstimatorSettings
from practicum.training.group_reward import GroupReward, find_group_reward
from practicum.training.rollout_source import rollout_metrics
from practicum.training.settings import RLSettings
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

REQUEST = "buy a cheap lamp and tidy the attic, then tell Ada"
PERFECT = ("0: buy lamp, tidy attic, tell Ada<1 2", "1: find, pick<1, pay<2", "2: sort, clean", "go")
SEQUENTIAL = (*PERFECT[:2], "2: sort, clean<1", "go")


def planned(texts: Sequence[str], reward: float, outcome: Outcome = Outcome.SUCCESS, attempt: int = 0) -> Trajectory:
    turns = tuple(
        Turn(
            (Span(Origin.OBSERVATION, (1,)), Span(Origin.SAMPLED, (2,), (-0.5,))),
            restart=True,
            messages=(),
            reply=text,
            action=Action(text=text, content=text),
            source=ActionSource.POLICY,
            policy_version=0,
            stop_reason=StopReason.END,
            seed=0,
            reward=reward if text == texts[-1] else 0.0,
        )
        for text in texts
    )
    task = Task("t", "htdag", "train", {"request": REQUEST})
    return Trajectory(task, attempt, "t", outcome, turns, reward, {"completion": reward}, Seeds(0, attempt))


def test_plans_are_made_again_from_the_record() -> None:
    dag = plan_of(planned(PERFECT, 2.0))
    assert sorted(dag[leaf].label for leaf in dag.leaves) == [
        "clean attic", "find lamp", "pay lamp", "pick lamp", "sort attic", "tell Ada",
    ]  # fmt: skip
    # 6 steps, 8 parts, and 5 orders: find<pick<pay<tell, sort<tell, clean<tell.
    assert len(plan_features(dag)) == 19


def test_the_diversity_bonus_by_hand() -> None:
    """The second plan also orders sort before clean, so that clean alone comes directly before tell: it has 19 features
    too, of which 18 are common, and both have 20 together. A plan that is not solved has no bonus and gives none."""
    group = [planned(PERFECT, 1.9), planned(SEQUENTIAL, 1.8), planned(("go",), -0.8, Outcome.FAILURE)]
    features = [plan_features(plan_of(episode)) for episode in group]
    assert similarity(features[0], features[1]) == 18 / 20
    assert plan_diversity(group, [1.9, 1.8, -0.8]) == pytest.approx([1.9 + 0.02, 1.8 + 0.02, -0.8])
    same = [planned(PERFECT, 1.9), planned(PERFECT, 1.9)]
    assert plan_diversity(same, [1.9, 1.9]) == [1.9, 1.9]
    assert plan_diversity(group[1:], [1.8, -0.8]) == [1.8, -0.8]


def test_the_adjusted_reward_is_in_the_record_and_in_the_metrics() -> None:
    reward = find_group_reward("plan_diversity", 2.0)
    group = [planned(PERFECT, 1.9), planned(SEQUENTIAL, 1.8, attempt=1)]
    alone = planned(("go",), -0.8, Outcome.FAILURE)
    (adjusted,), episodes = reward.apply([group], [*group, alone])
    assert [episode.reward for episode in adjusted] == pytest.approx([1.94, 1.84])
    assert [episode.turns[-1].reward for episode in adjusted] == pytest.approx([1.94, 1.84])
    assert adjusted[0].components == pytest.approx({"completion": 1.9, "plan_diversity": 0.04})
    assert episodes == [*adjusted, alone]
    assert episodes[0] is adjusted[0]  # a batch is stored by identity
    assert decode_episode(encode_episode(adjusted[0])) == adjusted[0]
    assert rollout_metrics(episodes)["reward_part/plan_diversity/mean"] == pytest.approx(0.08 / 3)


def test_a_function_of_a_user_s_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def ranks(group, rewards):\n    return [sorted(rewards).index(reward) for reward in rewards]\n")
    reward = find_group_reward(f"{path}:ranks", 1.0)
    adjusted = reward.adjust([planned(PERFECT, 5.0), planned(SEQUENTIAL, 7.0)])
    assert [episode.reward for episode in adjusted] == [0.0, 1.0]
    assert adjusted[1].components["ranks"] == -6.0


def test_what_a_function_must_not_do_is_said() -> None:
    group = [planned(PERFECT, 1.0)]
    with pytest.raises(UserError, match="returned \\[\\] for 1 episodes; it must return one finite number for each"):
        GroupReward("short", lambda group, rewards: []).adjust(group)
    with pytest.raises(UserError, match="'broken' failed: ZeroDivisionError"):
        GroupReward("broken", lambda group, rewards: [1 / 0]).adjust(group)


def test_wrong_settings_are_refused() -> None:
    base = ["agent.environment=htdag", "algorithm.adv_estimator=grpo", "trainer.device=cpu"]
    with pytest.raises(UserError, match=r"algorithm\.group_reward\.weight=0\.5 does nothing without"):
        resolve_train([*base, "algorithm.group_reward.weight=0.5"])
    with pytest.raises(UserError, match="does not go with --from-trajectories"):
        resolve_train([*base, "algorithm.group_reward.name=plan_diversity", "data.from_trajectories=x"])
    config = resolve_train([*base, "algorithm.group_reward.name=plan_diversty"]).config
    with pytest.raises(UserError, match="Unknown group reward 'plan_diversty'. Did you mean 'plan_diversity'"):
        check_train(config)
    with pytest.raises(UserError, match="use role_credit=shared with it"):
        RLSettings(
            adv_estimator="grpo",
            num_chains=2,
            group_reward="plan_diversity",
            estimation=EstimatorSettings(role_credit="own"),
        )
