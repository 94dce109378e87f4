"""Starts, watches, stops and explains workers, which it starts by command line only. `train` does so from Python."""

from launch.api import Trained, train

__all__ = ["Trained", "train"]
