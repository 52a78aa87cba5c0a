"""What becomes of the zoo's models is what zoo_plans.txt says: a commit that changes it changes that list on purpose.

It is of the models that tests have anyway, for one processor, and without a compiler (scripts/zoo_plans.py).
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import zoo_plans

from onnxfuse.zoo.manifest import StoredModel
from tests.support import versions

LINES = zoo_plans.read()


@pytest.mark.parametrize("name", LINES)
def test_a_plan_is_the_listed_one(name: str, real_model: Callable[[str], Path]) -> None:
    versions.need("onnx", "onnxruntime")
    assert zoo_plans.plan_lines(name, real_model(name)) == LINES[name], "if that is meant, run scripts/zoo_plans.py"


def test_the_list_is_of_all_models_at_hand(manifest: dict[str, StoredModel]) -> None:
    assert list(LINES) == zoo_plans.at_hand(manifest), "run scripts/zoo_plans.py"
    lines = [line for own in LINES.values() for line in own]
    assert {line.split(" ")[1] for line in lines} == {"cpu", "cuda"}
    assert all(len(line.split(" ")) == 5 for line in lines)
