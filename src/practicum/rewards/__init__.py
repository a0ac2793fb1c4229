"""Rewards: one small file each, plain decorated functions."""
