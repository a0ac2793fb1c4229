"""Generated text that teaches a small model to copy from its prompt (`kinds`), and its arrays of tokens (`data`)."""
