"""Training: one learner, and the stages that feed it."""
