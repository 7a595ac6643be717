"""CUDA kernels on the processor: their translation, the fibers they run on, what is checked."""
