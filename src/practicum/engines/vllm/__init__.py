"""The vLLM engine: client, server process, wire protocol."""
