"""Datasets: segments that a run kept, or that Minari has, and learning from them without actors."""
