"""The legs of `benchmarks/gpu.py`: each measures one thing and returns rows."""
