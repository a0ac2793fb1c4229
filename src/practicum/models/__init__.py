"""Models: the built-in tiny one, loaders, and the one decoder that learner and engine share."""
