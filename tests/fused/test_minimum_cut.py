"""The cheapest assignment of two sides, against all assignments of small instances."""

import itertools
import math
from random import Random

import pytest

from onnxfuse.fused.minimum_cut import MinimumCut

Costs = dict[int, tuple[float, float]]
Pairs = list[tuple[int, int, float]]
Rewards = list[tuple[set[int], float]]


def total(side: set[int], costs: Costs, pairs: Pairs, rewards: Rewards) -> float:
    alone = sum(if_true if item in side else if_false for item, (if_true, if_false) in costs.items())
    apart = sum(cost for one, other, cost in pairs if one in side and other not in side)
    return alone + apart - sum(gain for together, gain in rewards if together <= side)


@pytest.mark.parametrize("seed", range(30))
def test_no_assignment_is_cheaper(seed: int) -> None:
    random = Random(seed)
    items = range(random.randint(1, 8))
    costs = {item: (random.choice([0.0, random.random() * 5]), random.random() * 5) for item in items}
    pairs = [(random.choice(items), random.choice(items), random.random() * 3) for _ in range(random.randint(0, 20))]
    rewards = [({random.choice(items) for _ in range(3)}, random.random() * 3) for _ in range(random.randint(0, 5))]
    if seed % 3 == 0:  # forbid a side of one item
        costs[0] = random.choice([(math.inf, 1.0), (1.0, math.inf)])
    cut = MinimumCut()
    for item, (if_true, if_false) in costs.items():
        cut.add(item, if_true, if_false)
    for one, other, cost in pairs:
        cut.separate(one, other, cost)
    for together, gain in rewards:
        cut.reward(together, gain)
    found = cut.solve()
    everything = itertools.chain.from_iterable(itertools.combinations(items, size) for size in range(len(items) + 1))
    least = min(total(set(side), costs, pairs, rewards) for side in everything)
    assert total({item for item in items if item in found}, costs, pairs, rewards) == pytest.approx(least)
    assert cut.cost == pytest.approx(least)


def test_costs_of_an_item_add_up() -> None:
    cut = MinimumCut()
    cut.add("a", 3.0, 2.0)
    assert cut.solve() == set()
    cut.add("a", 0.0, 2.0)
    assert cut.solve() == {"a"}


def test_an_item_must_have_a_side() -> None:
    cut = MinimumCut()
    cut.add("a", math.inf, math.inf)
    with pytest.raises(ValueError, match="forbidden on both sides"):
        cut.solve()
