"""A model's graph, checked at load and indexed for the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.core.contract import Edge, Graph
from serving.errors import SetupError, nearest

CLIENT = "client"


def split(end: str) -> tuple[str, str]:
    """ "node.port" as a pair."""
    node, dot, port = end.partition(".")
    if not (node and dot and port):
        raise SetupError(f'An edge end is "node.port" or "client.name", not "{end}".')
    return node, port


@dataclass(slots=True)
class Wiring:
    """One walk's edges by the node they touch."""

    nodes: tuple[str, ...]
    inputs: dict[str, dict[str, Edge]] = field(default_factory=lambda: defaultdict(dict))  # node -> port -> edge
    outputs: dict[str, dict[str, list[Edge]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    client_inputs: dict[str, Edge] = field(default_factory=dict)  # client name -> edge
    client_outputs: dict[str, Edge] = field(default_factory=dict)


def check(graph: Graph) -> None:
    """Refuse a graph that cannot run: every name used must exist and every input port of a walk have one source."""
    for name, node in graph.nodes.items():
        if node.name != name:
            raise SetupError(f'Node "{name}" calls itself "{node.name}".')
        for label in (*node.reads, *node.writes):
            _known(label, graph.resources, f'resource of node "{name}"')
        if list(node.buckets) != sorted(node.buckets):
            raise SetupError(f'Node "{name}" must list its buckets in ascending order.')
    for edge in graph.edges:
        (source, _), (target, _) = split(edge.source), split(edge.target)
        for end in {source, target} - {CLIENT}:
            _known(end, graph.nodes, f"node of the edge {edge.source} -> {edge.target}")
        if source == target == CLIENT:
            raise SetupError(f"The edge {edge.source} -> {edge.target} joins the client to itself.")
        if edge.device and CLIENT in (source, target):
            raise SetupError(
                f"The edge {edge.source} -> {edge.target} touches the client: it cannot stay on the device."
            )
    for walk, nodes in graph.walks.items():
        for name in nodes:
            _known(name, graph.nodes, f'node of walk "{walk}"')
        _one_source(_inside(graph, nodes))


def _inside(graph: Graph, nodes: tuple[str, ...]) -> list[Edge]:
    """The edges of a walk: those with both ends in it."""
    inside = {*nodes, CLIENT}
    return [edge for edge in graph.edges if {split(edge.source)[0], split(edge.target)[0]} <= inside]


def _one_source(edges: list[Edge]) -> None:
    sources: dict[str, str] = {}
    for edge in edges:
        if sources.setdefault(edge.target, edge.source) != edge.source:
            raise SetupError(f"{edge.target} has two sources: {sources[edge.target]} and {edge.source}.")


def wirings(graph: Graph) -> dict[str, Wiring]:
    """Walk -> its wiring; edges with an end outside the walk are left out."""
    return {walk: _wire(graph, nodes) for walk, nodes in graph.walks.items()}


def _wire(graph: Graph, nodes: tuple[str, ...]) -> Wiring:
    wiring = Wiring(nodes)
    for edge in _inside(graph, nodes):
        (source, out), (target, port) = split(edge.source), split(edge.target)
        if source == CLIENT:
            wiring.client_inputs[out] = edge
        else:
            wiring.outputs[source][out].append(edge)
        if target == CLIENT:
            wiring.client_outputs[port] = edge
        else:
            wiring.inputs[target][port] = edge
    return wiring


def _known(name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        raise SetupError(f'Unknown {what}: "{name}".{nearest(name, known)}')
