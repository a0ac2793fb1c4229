"""Groups of rows that share a prefix, as `decode_attention.attend` takes them. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SharedPrefixBatch:
    """Groups of rows: the keys that the members of a group share are read in the pages of one of them, the leader."""

    members: Tensor  # [groups, group size] rows; -1: none
    leaders: Tensor  # [groups] the slot to read
    lengths: Tensor  # [groups] how many keys are shared; 0: there is no such group
    row_lengths: Tensor  # [rows] the shared keys of each row's group
