"""The coordinator's page of a run, and its metrics for Prometheus."""
