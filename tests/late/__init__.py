"""A CUDA device that is not there: as late, strict and forgetful as one may be."""
