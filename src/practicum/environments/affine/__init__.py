"""Affine's three tasks: satisfy a formula (`sat`), find a program's input (`abd`), write a program (`ded`)."""
