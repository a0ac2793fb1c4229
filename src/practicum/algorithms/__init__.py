"""Algorithms: pure functions from rewards and log-probs to numbers, each with a golden test."""
