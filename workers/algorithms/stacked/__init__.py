"""Updates of several policies of the same shape as one."""
