"""What a tool raises when it is not the agent's fault."""

from __future__ import annotations


class ToolFailure(Exception):
    """The world behind a tool broke (a server died, a state cannot be made): the episode ends as `env_error`.

    Any other exception of a tool but a `UserError` is shown to the agent as an observation.
    """
