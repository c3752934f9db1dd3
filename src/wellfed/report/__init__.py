"""How a result looks: pure text out of values."""
