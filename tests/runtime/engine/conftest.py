"""Models and engines shared by this folder's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.build.engines import EngineHandle, LocalEngine, engine_process
from tests.build.models import tiny_llama

torch.set_num_threads(1)  # the models are tiny, and other tests run beside


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a Hugging Face folder."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module")
def local(llama_folder: Path) -> Iterator[LocalEngine]:
    """An engine in this process, with blocks of four tokens."""
    engine = LocalEngine(llama_folder)
    yield engine
    engine.engine.stop()


@pytest.fixture(scope="session")
def served(llama_folder: Path) -> Iterator[EngineHandle]:
    """An engine process, ready, that all tests of the session share."""
    with engine_process(llama_folder) as handle:
        yield handle.wait_ready()
