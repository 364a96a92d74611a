"""What `import agentkv` loads, and what a name of it loads when it is first asked for."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentkv as kv
from agentkv._types.extras import needs_extra

# Each costs tens of milliseconds and is needed later, or by some only.
NOT_FOR_A_CONTEXT = {"structlog", "rich", "typer", "jinja2", "llguidance", "docstring_parser", "starlette", "httpx"}


def said_by(script: str) -> list[str]:
    script = f"import gc; gc.disable()\n{script}"  # a quarter of the time that so many imports take
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)
    return names


def loaded_by(statements: str) -> set[str]:
    return set(
        said_by(
            f"import sys; before = set(sys.modules)\n{statements}\n"
            "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
        )
    )


def test_importing_the_package_loads_nothing_behind_its_names() -> None:
    loaded = loaded_by("import agentkv")
    assert {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names} == {"agentkv", "lazy_loader"}


def test_a_context_loads_no_agents_patterns_or_tests() -> None:
    loaded = loaded_by("import agentkv; agentkv.Context")
    assert not loaded & {"agentkv.agents.agent", "agentkv.agents.events", "agentkv.patterns", "agentkv.testing"}
    assert not {name.split(".")[0] for name in loaded} & NOT_FOR_A_CONTEXT


def test_adapters_are_reached_without_an_import_and_load_none_of_the_others() -> None:
    assert "pydantic_ai" not in loaded_by("import agentkv; agentkv.adapters")
    loaded = loaded_by("import agentkv; agentkv.adapters.openai.client")
    assert "openai" in loaded
    assert not loaded & {"pydantic_ai", "agents", "langchain_core", "mcp"}


def test_any_name_may_be_the_first() -> None:
    """Whichever is asked for first decides in which order modules are imported."""
    script = (
        "import importlib, json, sys; got = []\n"
        f"for name in {kv.__all__!r}:\n"
        "    for module in [module for module in sys.modules if module.split('.')[0] == 'agentkv']:\n"
        "        del sys.modules[module]\n"
        "    got.append(getattr(importlib.import_module('agentkv'), name) and name)\n"
        "print(json.dumps(got))"
    )
    assert said_by(script) == kv.__all__


# What is imported, a package that it needs, and the extra that brings it.
EXTRAS = [
    ("agentkv.adapters.openai", "httpx2", "openai"),
    ("agentkv.adapters.openai", "starlette", "openai"),
    ("agentkv.adapters.openai_agents", "agents", "openai-agents"),
    ("agentkv.adapters.pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ("agentkv.adapters.langchain", "langchain_core", "langchain"),
    ("agentkv.adapters.langchain", "openai", "langchain"),
    ("agentkv.adapters.mcp.connection", "mcp", "mcp"),
    ("agentkv.adapters.mcp.server", "mcp", "mcp"),
    ("agentkv.adapters.mcp.serving", "mcp", "mcp"),
    ("agentkv.adapters.mcp.serving", "starlette", "mcp"),
    ("agentkv.serve:application", "starlette", "serve"),
    ("agentkv.serve.run", "uvicorn", "serve"),
    ("agentkv.serve.run", "h11", "serve"),
    ("agentkv.serve.run", "openai", "serve"),
    ("agentkv.serve:application", "anthropic", "serve"),
    ("agentkv.serve:application", "prometheus_client", "serve"),
    ("agentkv.evaluation.serving", "uvicorn", "serve"),
    ("agentkv.evaluation.serving", "starlette", "serve"),
    ("agentkv.evaluation.server_runner", "openai", "serve"),
]


def test_what_needs_a_missing_package_says_which_extra_brings_it() -> None:
    script = (
        "import json, pkgutil, sys; said = []\n"
        f"for name, missing, _ in {EXTRAS!r}:\n"
        "    for module in [module for module in sys.modules if module.split('.')[0] in ('agentkv', missing)]:\n"
        "        del sys.modules[module]\n"
        "    sys.modules[missing] = None\n"
        "    try:\n"
        "        said.append(str(pkgutil.resolve_name(name if ':' in name else f'{name}:')))\n"
        "    except ImportError as error:\n"
        "        said.append(str(error))\n"
        "    del sys.modules[missing]\n"
        "print(json.dumps(said))"
    )
    for line, (_, missing, extra) in zip(said_by(script), EXTRAS, strict=True):
        assert line.startswith(missing)
        assert line.endswith(f"is not installed: pip install 'agentkv-sdk[{extra}]'")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("gone", name="openai"), "openai is not installed: pip install 'agentkv-sdk[serve]'"),
        (ModuleNotFoundError("it needs more"), "it needs more; pip install 'agentkv-sdk[serve]'"),
        (ImportError("it is too old", name="openai"), "it is too old; pip install 'agentkv-sdk[serve]'"),
    ],
)
def test_an_extra_is_named_once_however_deep_its_import(error: ImportError, said: str) -> None:
    with pytest.raises(type(error)) as raised, needs_extra("serve"), needs_extra("serve"):
        raise error
    assert str(raised.value) == said


def test_who_serves_tools_loads_no_types_of_the_other_protocols() -> None:
    script = (
        "import json, sys; import agentkv.adapters.mcp.serving\n"
        "print(json.dumps([name for name in ('anthropic', 'openai', 'prometheus_client') if name in sys.modules]))"
    )
    assert said_by(script) == []


def test_extras_that_are_named_exist() -> None:
    project = tomllib.loads((Path(kv.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {extra for _, _, extra in EXTRAS} <= project["optional-dependencies"].keys()
