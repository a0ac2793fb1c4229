"""AgentGym's worlds."""
