"""ZeroMQ sockets, their encryption, and which node this is."""
