"""Prints the graph of a job as a Mermaid flowchart, for documents and pull requests.

::

    flowchart LR
      n0["fetch"]:::done
      n1["build #34;fast#34;"]:::running
      n0 --> n1
      classDef done fill:#dbeafe,stroke:#2563eb,color:#111827
      …
"""

from collections.abc import Mapping, Sequence

from progressor.cli.jobs.drawing import Vertex, shown_name

_CLASSES: Mapping[str, str] = {
    "waiting": "fill:#f3f4f6,stroke:#9ca3af,color:#111827",
    "ready": "fill:#cffafe,stroke:#0891b2,color:#111827",
    "running": "fill:#dcfce7,stroke:#16a34a,color:#111827",
    "done": "fill:#dbeafe,stroke:#2563eb,color:#111827",
    "failed": "fill:#fee2e2,stroke:#dc2626,color:#111827,stroke-width:3px",
    "skipped": "fill:#fef9c3,stroke:#ca8a04,color:#111827,stroke-dasharray:4",
    "cancelled": "fill:#fae8ff,stroke:#a21caf,color:#111827,stroke-dasharray:4",
}
"""The look of a node by its state; a node in an unknown state of a newer engine has no class."""


def mermaid(vertices: Sequence[Vertex]) -> str:
    """Return a flowchart of all nodes and edges; it is the same for the same graph.

    Args:
        vertices: With unique names; the predecessors are among them.
    """
    ids = {vertex.name: f"n{number}" for number, vertex in enumerate(vertices)}
    lines = ["flowchart LR"]
    for vertex in vertices:
        state = f":::{vertex.state}" if vertex.state in _CLASSES else ""
        lines.append(f'  {ids[vertex.name]}["{_escaped(vertex.name)}"]{state}')
    lines += [
        f"  {ids[before]} --> {ids[vertex.name]}"
        for vertex in vertices
        for before in vertex.predecessors
    ]
    states = {vertex.state for vertex in vertices}
    lines += [f"  classDef {state} {look}" for state, look in _CLASSES.items() if state in states]
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    """Return a name for use in quotes; special characters are replaced by their numbers."""
    return "".join(it if _is_plain(it) else f"#{ord(it)};" for it in shown_name(name))


def _is_plain(character: str) -> bool:
    return character.isalnum() or character in " -_/,+" or not character.isascii()
