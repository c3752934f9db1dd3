"""The words: frozen values and ports, standard library only, no input or output."""
