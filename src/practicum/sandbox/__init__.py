"""Where model-written code runs: a process of its own that sees nothing and outlives nothing."""
