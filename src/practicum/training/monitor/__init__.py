"""Monitoring of training: metrics, loggers, health, reward hacking."""
