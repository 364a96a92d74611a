"""Every chat template that llama.cpp is tested with, by each door; `make soak` fetches them."""

from __future__ import annotations

import pytest

from .doors import try_all
from .sources import llama_cpp_files

CLOSED = {"fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined"}  # it wants variables of its own


@pytest.mark.soak
def test_every_template_opens_by_every_door(tmp_path_factory: pytest.TempPathFactory) -> None:
    tried = try_all(llama_cpp_files(tmp_path_factory.mktemp("templates"), "/models/templates/"))
    assert len(tried) >= 70
    closed = {name: whys for name, whys in tried.items() if whys}
    assert closed.keys() <= CLOSED.keys(), closed
    assert all(CLOSED[name] in why for name, whys in closed.items() for why in whys.values())
