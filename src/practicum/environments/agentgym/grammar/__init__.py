"""How commands are written: AgentGym's sentences and the founding paper's brackets."""
