"""llama.cpp's server from the package `xllamacpp`: python benchmarks/llama_server.py GGUF SLOTS TOKENS THREADS.

It has SLOTS requests at once with TOKENS tokens each, and prints its address (…/v1).
"""

from __future__ import annotations

import sys
import time

import xllamacpp


def main() -> None:
    path, slots, tokens, threads = sys.argv[1], *map(int, sys.argv[2:])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel, params.n_ctx = slots, slots * tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.port, params.verbosity = 0, 0
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
