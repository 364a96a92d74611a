"""Instructions and cycles of inner loops, as llvm-mca counts them."""
