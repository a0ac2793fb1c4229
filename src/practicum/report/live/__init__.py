"""The live page over a folder of runs, which is only read."""
