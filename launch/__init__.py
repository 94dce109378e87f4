"""Starts, watches, stops and explains workers, which it starts by command line only. From Python: `import rookery`."""
