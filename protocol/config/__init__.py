"""The run's configuration: typed, validated, frozen."""
