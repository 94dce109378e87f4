"""Updates in static memory that CUDA graphs replay."""
