"""Messages to token ids, and token ids to actions: renderer, chat templates, reasoning, reply formats."""
