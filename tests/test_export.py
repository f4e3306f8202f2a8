"""The model and its uncertainty as one module: eager, compiled, exported."""

import copy
import io

import pytest
import torch
from torch import nn

from richbll import RichBLL
from tests.cases import CASES, Forward, make

EXPORTABLE = sorted(set(CASES) - {"control_flow_on_data"})


def fitted(name: str, dtype: torch.dtype = torch.float32):
    case = make(name, 2, dtype)
    return case, RichBLL(case.model, noise_variance=0.3, ridge=0.1).fit(case.train)


@pytest.mark.parametrize("name", list(CASES))
def test_equals_predict(name: str) -> None:
    case, uq = fitted(name)
    module, want = uq.as_module(), uq.predict(case.test)
    mean, variance = module(case.test)
    torch.testing.assert_close(mean, want.mean)
    torch.testing.assert_close(variance, want.epistemic_variance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPORTABLE)
def test_torch_export_with_a_free_batch_size(name: str) -> None:
    case, uq = fitted(name)
    module = uq.as_module()
    program = torch.export.export(module, (case.test,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    again = torch.export.load(buffer).module()
    for x in (case.test, case.train[:4]):
        for got, want in zip(again(x), module(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlp", "cnn_batchnorm_groups", "layernorm_head"])
def test_torch_compile_in_one_graph(name: str) -> None:
    case, uq = fitted(name)
    module = uq.as_module()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for got, want in zip(compiled(case.test), module(case.test), strict=True):
        torch.testing.assert_close(got, want)


def test_it_is_a_copy_that_stays_in_eval_mode() -> None:
    case, uq = fitted("cnn_batchnorm_groups")
    module = uq.as_module()
    want = module(case.test)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.add_(1.0)
    module.train()
    assert not any(part.training for part in module.modules())
    for got, expected in zip(module(case.test), want, strict=True):
        assert torch.equal(got, expected)
    assert not any(parameter.requires_grad for parameter in module.parameters())
    twin = copy.deepcopy(module)
    assert torch.equal(twin(case.test)[1], want[1])
    twin.load_state_dict(module.state_dict())


def test_keyword_inputs_and_dtype() -> None:
    model = Forward(
        lambda m, x, scale: m.head(torch.tanh(m.hidden(x)) * scale), hidden=nn.Linear(4, 5), head=nn.Linear(5, 1)
    )
    x, scale = torch.randn(40, 4), torch.rand(40, 1)
    uq = RichBLL(model, noise_variance=1.0).fit([{"x": x, "scale": scale}])
    mean, variance = uq.as_module()(x=x, scale=scale)
    assert mean.shape == variance.shape == (40, 1)
    double = uq.as_module().double()
    mean, variance = double(x=x.double(), scale=scale.double())
    assert variance.dtype == torch.float64
    torch.testing.assert_close(variance.float(), uq.predict({"x": x, "scale": scale}).epistemic_variance)
