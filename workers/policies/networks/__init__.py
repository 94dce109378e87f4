"""The networks: encoders, recurrent cores, heads."""
