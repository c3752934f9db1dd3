"""Questions put to a host: one file each, pure."""
