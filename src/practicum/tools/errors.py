"""The exception of a tool whose backend failed."""

from __future__ import annotations


class ToolFailure(Exception):
    """The backend of a tool failed (a server died, a state cannot be created): the episode ends as `env_error`.

    Any other exception of a tool, except a `UserError`, is shown to the agent as an observation.
    """
