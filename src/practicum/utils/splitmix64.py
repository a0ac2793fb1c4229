"""The constants of splitmix64, as signed 64-bit numbers: the CPU sampler and the GPU kernel draw the same numbers."""

GOLDEN_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
