"""Environment copies in worker processes, over shared memory."""
