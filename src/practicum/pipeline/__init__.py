"""Affine's pipeline as one resumable command: collect, SFT and RL, evaluated before, between and after."""
