"""The kernel language: what a GPU kernel computes, on which threads, in which memory."""
