"""What is watched during training: metrics, loggers, health, reward hacking."""
