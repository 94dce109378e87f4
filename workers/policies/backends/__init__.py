"""The same policies by numpy and by CUDA graphs, where that was measured to be faster."""
