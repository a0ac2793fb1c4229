"""Small web applications served on the loopback address, with separate state for every session."""
