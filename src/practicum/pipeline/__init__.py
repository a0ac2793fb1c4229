"""Collect, SFT, RL and evaluation as one resumable command."""
