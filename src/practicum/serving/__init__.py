"""Serving: the OpenAI and Anthropic dialects over the engine, and recording of external agents."""
