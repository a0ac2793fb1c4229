"""AgentGym's environments."""
