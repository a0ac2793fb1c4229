"""The expert's decisions as rows for SFT: one row per decision, with the prompt as it is when the decision is taken.

Reading a request is harder to learn than the recipes: it takes copying, and every request is different. So most
requests may give only their first decision, and few all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from practicum.environments.htdag.planning import PlanningEpisode
from practicum.environments.htdag.policies import ExpertPolicy
from practicum.environments.htdag.requests import draw_requests, goals_of
from practicum.errors import UserError


def demonstrations(
    num_requests: int, num_whole: int | None = None, split: str = "train", seed: int = 0, prompt: str = "short"
) -> Iterator[dict[str, str]]:
    """Yield rows of `task_id`, `prompt` and `action`; the first `num_whole` requests (None: all) give all decisions."""
    if num_requests < 1 or (num_whole is not None and not 0 <= num_whole <= num_requests):
        raise UserError(f"Give at least one request, and at most as many whole ones: {num_requests}, {num_whole}.")
    for index, task in enumerate(draw_requests(split, num_requests, seed)):
        episode, policy = PlanningEpisode(prompt=prompt), ExpertPolicy()
        shown = episode.reset(task.fields["request"], goals_of(task.fields))
        while not episode.done:
            action = policy(episode)
            yield {"task_id": task.id, "prompt": shown, "action": action}
            shown = episode.step(action).prompt
            if num_whole is not None and index >= num_whole:
                break
