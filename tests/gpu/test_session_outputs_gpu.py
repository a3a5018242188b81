"""Outputs whose shape depends on the inputs' values, in TensorRT itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorrt
import torch

from attngraft.engine.logger import process_logger
from attngraft.errors import EngineError
from attngraft.runtime import Session


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x fp32 [8, 1000] -> where int [2, found], the places of what is not zero, and doubled = x + x. Without a card."""
    builder = tensorrt.Builder(process_logger(tensorrt))
    network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    x = network.add_input("x", tensorrt.float32, (8, 1000))
    where = network.add_non_zero(x).get_output(0)
    doubled = network.add_elementwise(x, x, tensorrt.ElementWiseOperation.SUM).get_output(0)
    for name, tensor in (("where", where), ("doubled", doubled)):
        tensor.name = name
        network.mark_output(tensor)
    path = tmp_path_factory.mktemp("nonzero") / "model.engine"
    path.write_bytes(builder.build_serialized_network(network, builder.create_builder_config()))
    return path


@pytest.mark.parametrize("kind", ["host", "device"])
def test_outputs_have_the_shape_that_the_run_gave(engine: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    with Session(engine) as session:
        with pytest.warns(RuntimeWarning, match="shape of output 'where' depends on the input's values") as caught:
            for share in (0.1, 0.9, 0.0, 1.0, 0.5):
                x = (rng.random((8, 1000)) < share).astype(np.float32)
                outputs = session.run({"x": x if kind == "host" else torch.from_numpy(x).cuda()})
                host = {name: v if kind == "host" else v.numpy() for name, v in outputs.items()}
                np.testing.assert_array_equal(host["where"], np.stack(np.nonzero(x)))
                np.testing.assert_array_equal(host["doubled"], 2 * x)
        assert len(caught) == 1
        found = session.statistics
    assert (found.plain_runs, found.fallbacks, found.captures) == (5, 5, 0)


def test_such_an_output_cannot_be_bound(engine: Path) -> None:
    with Session(engine) as session, pytest.raises(EngineError, match="output 'where': its shape depends"):
        session.bind({"x": torch.ones(8, 1000, device="cuda")})
