"""Other tools' descriptions of a host: one format a file, each read into a Machine."""
