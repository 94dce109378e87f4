"""Several policies of the same shape that act as one."""
