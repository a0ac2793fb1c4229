"""Algorithms: advantages, KL estimates, losses, aggregation and preference losses as pure functions."""
