"""Tools that an agent can call: one small file each, plain decorated functions."""
