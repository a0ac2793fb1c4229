"""Triton kernels for a CUDA GPU, and the autograd functions over them. Imported only where there is one."""
