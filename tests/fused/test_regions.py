"""Regions of random graphs are convex, disjoint and connected, and simple graphs give the regions one expects."""

import numpy as np
import onnx_graphsurgeon as gs
from hypothesis import given
from hypothesis import strategies as st

from onnxfuse.fused import regions
from onnxfuse.fused.regions import find_regions


def _graph(edges: list[list[int]], fusible: list[bool]) -> list[gs.Node]:
    """Node i reads the results of the nodes ``edges[i]``; fusible ones are named F, the others B."""
    tensors = [gs.Variable(f"t{index}", np.float32) for index in range(len(edges))]
    source = gs.Variable("source", np.float32)
    return [
        gs.Node(
            "F" if fusible[index] else "B",
            f"n{index}",
            {},
            [tensors[p] for p in producers] or [source],
            [tensors[index]],
        )
        for index, producers in enumerate(edges)
    ]


def _regions(nodes: list[gs.Node]) -> list[list[int]]:
    found = find_regions(nodes, lambda node: node.op == "F", lambda producer, consumer, tensor: True)
    return sorted([int(node.name[1:]) for node in region] for region in found)


@st.composite
def _random_graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[bool]]:
    size = draw(st.integers(1, 40))
    edges = [
        sorted(set(draw(st.lists(st.integers(max(0, index - 8), index - 1), max_size=3)))) if index else []
        for index in range(size)
    ]
    return edges, draw(st.lists(st.sampled_from((True, True, False)), min_size=size, max_size=size))


@given(_random_graphs())
def test_regions_are_convex_disjoint_and_complete(graph: tuple[list[list[int]], list[bool]]) -> None:
    edges, fusible = graph
    found = _regions(_graph(edges, fusible))
    assert sorted(member for region in found for member in region) == [i for i, can in enumerate(fusible) if can]
    for region in found:
        assert region == sorted(region)
        inside = set(region)
        # What depends on the region through something outside must not be in it.
        behind: set[int] = set()
        for index, producers in enumerate(edges):
            if any(p in behind or (p in inside and index not in inside) for p in producers):
                assert index not in inside
                behind.add(index)
    _assert_no_cycle_between(found, edges)


def _assert_no_cycle_between(found: list[list[int]], edges: list[list[int]]) -> None:
    owner = {member: number for number, region in enumerate(found) for member in region}
    group = {index: owner.get(index, -1 - index) for index in range(len(edges))}
    successors: dict[int, set[int]] = {}
    for index, producers in enumerate(edges):
        for producer in producers:
            if group[producer] != group[index]:
                successors.setdefault(group[producer], set()).add(group[index])
    waiting = dict.fromkeys(set(group.values()), 0)
    for after in successors.values():
        for number in after:
            waiting[number] += 1
    ready = [number for number, count in waiting.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for number in successors.get(ready.pop(), ()):
            waiting[number] -= 1
            if waiting[number] == 0:
                ready.append(number)
    assert done == len(waiting), "two fused nodes wait for each other"


def test_a_chain_is_one_region() -> None:
    assert _regions(_graph([[], [0], [1], [2]], [True] * 4)) == [[0, 1, 2, 3]]


def test_a_diamond_is_one_region() -> None:
    assert _regions(_graph([[], [0], [0], [1, 2]], [True] * 4)) == [[0, 1, 2, 3]]


def test_a_path_through_another_node_splits_a_diamond() -> None:
    # 0 → 1 (not fusible) → 3, and 0 → 2 → 3: node 3 must wait for node 1, which waits for node 0.
    assert _regions(_graph([[], [0], [0], [1, 2]], [True, False, True, True])) in ([[0], [2, 3]], [[0, 2], [3]])


def test_an_independent_operand_joins_a_late_consumer() -> None:
    # 0 is ready at once, but its only reader 3 comes after two nodes that are not fusible.
    assert _regions(_graph([[], [], [1], [0, 2]], [True, False, False, True])) == [[0, 3]]


def test_a_value_read_elsewhere_does_not_split_a_region() -> None:
    assert _regions(_graph([[], [0], [0]], [True, True, False])) == [[0, 1]]


def test_a_long_chain_is_cut_into_runs() -> None:
    length = 2 * regions.MAX_NODES + 10
    found = _regions(_graph([[index - 1] if index else [] for index in range(length)], [True] * length))
    assert [len(region) for region in found] == [regions.MAX_NODES, regions.MAX_NODES, 10]
