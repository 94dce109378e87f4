"""From a configuration to sizes, credits and layouts. Pure; nothing in here imports torch."""
