"""Several processes that train one policy."""
