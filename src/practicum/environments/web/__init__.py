"""The web environment: a browser, sites on the loopback address, their tasks and evaluators."""
