"""Where is each GPU, and where does each rank go: pure."""
