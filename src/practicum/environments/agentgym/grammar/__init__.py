"""Grammars of commands: AgentGym's sentences and Affine's brackets."""
