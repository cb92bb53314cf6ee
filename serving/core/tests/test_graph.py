"""A graph that cannot run is refused at load, with the name that is wrong and the nearest right one."""

import pytest

from serving.core.contract import Edge, Graph, Node
from serving.core.graph import check, wirings
from serving.core.streams import Each
from serving.errors import SetupError


class Plain(Node):
    def __init__(self, name, writes=(), buckets=()):
        self.name, self.writes, self.buckets = name, writes, buckets


def graph(edges=(), nodes=("encoder", "decoder"), walks=None, **extra):
    made = {name: Plain(name, **extra) for name in nodes}
    return Graph(made, edges, {}, walks or {"all": tuple(made)})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (graph([Edge("encodr.x", "decoder.y", Each())]), 'Unknown node.*Did you mean "encoder"'),
        (graph([Edge("encoder", "decoder.y", Each())]), 'is "node.port"'),
        (graph([Edge("client.a", "client.b", Each())]), "joins the client to itself"),
        (graph([Edge("encoder.x", "client.y", Each(), device=True)]), "cannot stay on the device"),
        (graph([Edge("encoder.x", "decoder.y", Each()), Edge("client.x", "decoder.y", Each())]), "two sources"),
        (graph(walks={"all": ("encoder", "vocoder")}), 'Unknown node of walk "all": "vocoder"'),
        (graph(writes=("kv",)), 'Unknown resource of node "encoder": "kv"'),
        (graph(buckets=((8, 8), (4, 4))), "ascending order"),
    ],
)
def test_a_broken_graph_is_refused(broken, message):
    with pytest.raises(SetupError, match=message):
        check(broken)


def test_a_walk_leaves_out_the_edges_that_end_outside_it():
    edges = (
        Edge("client.a", "encoder.x", Each()),
        Edge("encoder.h", "decoder.h", Each()),
        Edge("decoder.t", "client.text", Each()),
    )
    wiring = wirings(graph(edges, walks={"encode": ("encoder",), "all": ("encoder", "decoder")}))
    assert list(wiring["encode"].client_inputs) == ["a"]
    assert not wiring["encode"].client_outputs
    assert not wiring["encode"].outputs["encoder"]
    assert list(wiring["all"].client_outputs) == ["text"]


def test_each_walk_may_have_a_source_of_its_own_for_a_port():
    edges = (Edge("encoder.h", "client.text", Each()), Edge("decoder.t", "client.text", Each()))
    made = graph(edges, walks={"draft": ("encoder",), "final": ("decoder",)})
    check(made)
    assert [wirings(made)[walk].client_outputs["text"].source for walk in made.walks] == ["encoder.h", "decoder.t"]
    with pytest.raises(SetupError, match="two sources"):
        check(graph(edges, walks={"both": ("encoder", "decoder")}))
