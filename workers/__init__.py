"""The workers: actor, learner, coordinator and what they are made of."""
