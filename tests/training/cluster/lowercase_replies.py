"""An environment for tests of several processes: rewards differ from reply to reply, also of a model that knows
nothing."""

from __future__ import annotations

from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment


class LowercaseReplies(MathEnvironment):
    """Pays the share of lower-case letters in a reply, whether or not it can be read as an answer."""

    def _reward(self) -> Step:
        reply = self.trajectory_so_far().turns[-1].reply
        share = sum(character.islower() for character in reply) / max(1, len(reply))
        return Step(reward=share, terminated=True, success=share > 0.5)

    async def step(self, action: Action) -> Step:
        return self._reward()

    async def truncate(self) -> Step:
        return self._reward()
