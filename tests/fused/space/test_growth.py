"""Regions that grow, on random graphs, beside what the words say."""

from collections.abc import Sequence
from random import Random

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnxfuse.fused.space.growth import Graph, grow


def random_nodes(random: Random) -> list[gs.Node]:
    """Nodes in topological order, each of which reads what up to three before it make."""
    nodes: list[gs.Node] = []
    for number in range(random.randint(2, 24)):
        read = random.sample(nodes[-8:], min(len(nodes), random.randint(0, 3)))
        result = gs.Variable(f"t{number}", np.dtype(np.float32), [4])
        nodes.append(gs.Node("Sum", inputs=[node.outputs[0] for node in read], outputs=[result]))
    return nodes


def is_convex(nodes: Sequence[gs.Node], region: set[int]) -> bool:
    """Whether no node outside both reads what the region makes and is read by it, perhaps through others."""
    behind: set[int] = set()
    for node in nodes:
        made = {id(tensor.inputs[0]) for tensor in node.inputs}
        if id(node) in region:
            if made & behind:
                return False
        elif made & (region | behind):
            behind.add(id(node))
    return True


def by_the_words(nodes: list[gs.Node], seed: gs.Node, free: set[int]) -> list[gs.Node]:
    """The region that is found by adding the first neighbour with which it is convex, until there is none."""
    region = {id(seed)}
    while True:
        for node in nodes:
            around = {id(tensor.inputs[0]) for tensor in node.inputs} | {id(one) for one in node.outputs[0].outputs}
            if id(node) in free - region and around & region and is_convex(nodes, region | {id(node)}):
                region.add(id(node))
                break
        else:
            return [node for node in nodes if id(node) in region]


@pytest.mark.parametrize("seed", range(200))
def test_a_region_is_what_is_found_by_adding_one_neighbour_at_a_time(seed: int) -> None:
    random = Random(seed)
    nodes = random_nodes(random)
    free = {id(node) for node in nodes if random.random() < 0.7}
    start = random.choice(nodes)
    found = grow(Graph(nodes), start, free, lambda _nodes: True)
    assert [id(node) for node in found] == [id(node) for node in by_the_words(nodes, start, free)]


@pytest.mark.parametrize("seed", range(50))
def test_a_region_is_convex_where_not_all_fit(seed: int) -> None:
    random = Random(seed)
    nodes = random_nodes(random)
    most = random.randint(1, 6)
    found = grow(Graph(nodes), random.choice(nodes), set(map(id, nodes)), lambda region: len(region) <= most)
    assert len(found) <= most and is_convex(nodes, set(map(id, found)))
