"""Plans as text in WorFBench's form: numbered nodes and edges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

NODE = re.compile(r"^\s*(\d{1,4})\s*[:.]\s*(\S.*?)\s*$", re.MULTILINE)
EDGES_HEADING = re.compile(r"\bEdges?:", re.IGNORECASE)
EDGE = re.compile(r"\(\s*(START|\d{1,4})\s*,\s*(END|\d{1,4})\s*\)")
START, END = "START", "END"

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PlanGraph:
    """Nodes by their number, in the order of the text, and edges; START and END are nodes without a number."""

    nodes: Mapping[str, str]
    edges: tuple[Edge, ...]


def parse_workflow(text: str) -> PlanGraph:
    """Read `Node: 1: … 2: … Edge: (START,1) (1,2) (2,END)`; edges of numbers that are no node are left out."""
    nodes = {str(int(index)): label for index, label in NODE.findall(text)} or _nodes_on_one_line(text)
    names = {START, END, *nodes}
    return PlanGraph(nodes, tuple(dict.fromkeys((a, b) for a, b in edges_of(text) if a in names and b in names)))


def edges_of(text: str) -> list[Edge]:
    """Every edge that a text names, also of nodes that it does not have."""
    numbered = (tuple(name if name in (START, END) else str(int(name)) for name in edge) for edge in EDGE.findall(text))
    return [(before, after) for before, after in numbered]


def _nodes_on_one_line(text: str) -> dict[str, str]:
    """The nodes of `Node: 1: … 2: … Edge: …` without line breaks: each number in turn begins the next node."""
    part = EDGES_HEADING.split(text)[0]
    begins: list[re.Match[str]] = []
    while begin := re.compile(rf"(?:^|\s){len(begins) + 1}\s*[:.]\s").search(part, begins[-1].end() if begins else 0):
        begins.append(begin)
    ends = [*(begin.start() for begin in begins), len(part)][1:]
    labels = (part[begin.end() : end].strip() for begin, end in zip(begins, ends, strict=True))
    return {str(index): label for index, label in enumerate(labels, 1) if label}
