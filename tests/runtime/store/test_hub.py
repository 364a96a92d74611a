"""Downloads from a hub that is a real server on this machine, in processes of their own: the library reads where the
hub is when it is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentkv_runtime.errors import PullError
from agentkv_runtime.store.hub import parse_name

from tests.conftest import FolderFactory
from tests.runtime.store.hub_server import COMMIT, TOKEN, HubServer
from tests.waiting import PATIENCE

REPO = "tests/tiny"
WEIGHTS = "model.safetensors"
SCRIPT = """
import json, sys
from huggingface_hub import constants
from agentkv_runtime.errors import PullError
from agentkv_runtime.store.hub import download, parse_name

constants.DOWNLOAD_CHUNK_SIZE = 4096  # the files are small
last = [0, 0]
def received(done, total):
    last[:] = done, total
try:
    snapshot = download(parse_name(sys.argv[1]), received)
    print(json.dumps({"path": str(snapshot.path), "commit": snapshot.commit, "received": last}))
except PullError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub(tiny_hf_folder: FolderFactory) -> Iterator[HubServer]:
    with HubServer(REPO, tiny_hf_folder("llama", layers=1)) as server:
        yield server


def environment(hub: HubServer, home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "AGENTKV_"))}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "AGENTKV_HOME": str(home / "agentkv")}
    return {**kept, **settings, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **more}


def download(hub: HubServer, home: Path, name: str = REPO, **more: str) -> dict[str, object]:
    command = [sys.executable, "-c", SCRIPT, name]
    done = subprocess.run(command, env=environment(hub, home, **more), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


def error(said: dict[str, object]) -> str:
    assert "error" in said, said
    return str(said["error"])


def test_a_whole_download_and_all_again_without_a_network(hub: HubServer, tmp_path: Path) -> None:
    said = download(hub, tmp_path)
    assert said["commit"] == COMMIT
    folder = Path(str(said["path"]))
    wanted = ["config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in folder.iterdir()) == wanted
    assert all((folder / name).read_bytes() == (hub.folder / name).read_bytes() for name in wanted)
    size = sum((hub.folder / name).stat().st_size for name in wanted)
    assert said["received"] == [size, size]

    asked = len(hub.asked)
    assert download(hub, tmp_path, HF_HUB_OFFLINE="1")["path"] == str(folder)
    assert len(hub.asked) == asked
    assert download(hub, tmp_path)["path"] == str(folder)
    assert hub.sent(WEIGHTS) == [""]  # not a second time


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: HubServer, tmp_path: Path) -> None:
    hub.cut_after = 40_960
    folder = Path(str(download(hub, tmp_path)["path"]))
    assert (folder / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()
    first, again = hub.sent(WEIGHTS)
    assert first == ""
    assert again.startswith("bytes=")
    assert int(again[6:-1]) > 0


@pytest.mark.parametrize(("fault", "says"), [("damage", "came damaged"), ("shorten", "Consistency check failed")])
def test_what_comes_wrong_is_not_kept(hub: HubServer, tmp_path: Path, fault: str, says: str) -> None:
    setattr(hub, fault, True)
    assert says in error(download(hub, tmp_path))
    setattr(hub, fault, False)
    folder = Path(str(download(hub, tmp_path)["path"]))
    assert (folder / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()


def test_refusals_say_what_to_do(hub: HubServer, tmp_path: Path) -> None:
    assert "no such model on the hub, or it is not yours to see" in error(download(hub, tmp_path, "tests/other"))
    assert "no such revision" in error(download(hub, tmp_path, f"{REPO}@v9"))
    assert "HF_HUB_OFFLINE is set" in error(download(hub, tmp_path, HF_HUB_OFFLINE="1"))
    assert "the hub cannot be reached" in error(download(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9"))


def test_a_private_model_needs_the_token(hub: HubServer, tmp_path: Path) -> None:
    hub.private = True
    assert "set HF_TOKEN" in error(download(hub, tmp_path))
    assert download(hub, tmp_path, HF_TOKEN=TOKEN)["commit"] == COMMIT


@pytest.mark.parametrize("name", ["", "a/b/c", "../secret", "a b", "owner/model@", "owner/model.gguf/x"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(PullError, match="is no name of a model on the hub"):
        parse_name(name)


def test_names() -> None:
    assert str(parse_name("owner/model@v1")) == "owner/model@v1"
    assert parse_name("owner/model", "v1") == parse_name("owner/model@v1")
    file = parse_name("owner/model-GGUF/Q4/model.gguf")
    assert (file.repo, file.file, file.revision) == ("owner/model-GGUF", "Q4/model.gguf", None)
    with pytest.raises(PullError):
        parse_name("owner/model@v1", "v2")


def test_ctrl_c_in_a_download_ends_the_command_and_leaves_nothing_half_done(hub: HubServer, tmp_path: Path) -> None:
    hub.hold.clear()
    pull = subprocess.Popen(
        [sys.executable, "-m", "agentkv.cli", "pull", REPO],
        env=environment(hub, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert hub.held.wait(PATIENCE)
    pull.send_signal(signal.SIGINT)
    hub.hold.set()  # the library only looks when bytes come
    said, complained = pull.communicate(timeout=PATIENCE)
    assert (pull.returncode, said) == (130, ""), complained
    assert "stopped; whole files stay for the next pull" in complained
    assert "Traceback" not in complained
    assert not list((tmp_path / "hf").rglob("*.incomplete"))
    assert not (tmp_path / "agentkv" / "models").exists()
    assert download(hub, tmp_path)["commit"] == COMMIT
