"""Tools an agent may call: one small file each, plain decorated functions."""
