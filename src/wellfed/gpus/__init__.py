"""GPUs as their drivers know them: one vendor a file."""
