"""All families, in the order from simple to complex work."""

from __future__ import annotations

from practicum.environments.rubric.families import (
    code_review,
    data_analysis,
    finance,
    legal,
    operations,
    research,
    support,
    writing,
)
from practicum.environments.rubric.families.base import Family
from practicum.errors import UserError, did_you_mean

FIELDS = (support, writing, operations, finance, legal, data_analysis, code_review, research)
FAMILIES: dict[str, Family] = {family.name: family for module in FIELDS for family in module.FAMILIES}


def family_named(name: str) -> Family:
    family = FAMILIES.get(name)
    if family is None:
        raise UserError(f"There is no workflow family '{name}'.{did_you_mean(name, FAMILIES)}")
    return family


def families_of(split: str) -> list[Family]:
    return [family for family in FAMILIES.values() if family.split == split]
