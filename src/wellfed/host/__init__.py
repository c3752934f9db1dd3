"""Linux: read it, record it, bind to it, launch on it. Decides nothing."""
