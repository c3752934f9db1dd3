"""A real Linux kernel with the NUMA nodes and PCI functions that a test asks for: a throw-away QEMU guest."""
