"""Triton kernels for a CUDA GPU, and the autograd functions over them.

All but `attention_plan` are imported only where Triton is there.
"""

import threading

CAPTURING = threading.RLock()
"""Held while a graph is captured: engine and trainer may both capture, and only one at a time can."""
