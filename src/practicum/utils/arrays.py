"""Names for the types of NumPy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]
