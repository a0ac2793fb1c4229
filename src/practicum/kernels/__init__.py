"""Triton kernels for a CUDA GPU, and the autograd functions over them. Imported only where there is one."""

import threading

CAPTURING = threading.RLock()
"""Held while a graph is captured: engine and learner may both want to, and only one at a time can."""
