"""PyTorch modules of known architectures with random weights: equal to PyTorch, whole and sharded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tileweave as tw

torch = pytest.importorskip("torch", reason="make test-models installs torch and transformers")
transformers = pytest.importorskip("transformers", reason="make test-models installs transformers")


class UNet(torch.nn.Module):
    """Two levels down and up, with skip connections and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> Any:
            layers = [torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.GroupNorm(4, b), torch.nn.SiLU()]
            return torch.nn.Sequential(*layers, torch.nn.Conv2d(b, b, 3, padding=1), torch.nn.ReLU())

        self.down = torch.nn.ModuleList([block(3, 16), block(16, 32)])
        self.middle = block(32, 64)
        self.up = torch.nn.ModuleList([torch.nn.ConvTranspose2d(64, 32, 2, 2), torch.nn.ConvTranspose2d(32, 16, 2, 2)])
        self.join = torch.nn.ModuleList([block(64, 32), block(32, 16)])
        self.out = torch.nn.Conv2d(16, 2, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = torch.nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.out(x)


def module(name: str, large: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """A module in evaluation mode, and its inputs; large: with the extents of the published models, two layers deep."""
    torch.manual_seed(3)
    t = transformers
    words = torch.randint(0, 500, (1, 128) if large else (2, 24))
    image = torch.randn(1, 3, 224, 224) if large else torch.randn(1, 3, 64, 64)
    width, heads, inner = (768, 12, 3072) if large else (64, 4, 128)
    text = {"vocab_size": 30000 if large else 500, "num_hidden_layers": 2, "hidden_size": width}
    text |= {"num_attention_heads": heads, "intermediate_size": inner}
    if name == "bert":
        made = t.BertModel(t.BertConfig(**text))
    elif name == "gpt2":
        config = t.GPT2Config(vocab_size=text["vocab_size"], n_layer=2, n_embd=width, n_head=heads)
        config.bos_token_id = config.eos_token_id = 0
        config.use_cache = False
        made = t.GPT2LMHeadModel(config)
    elif name == "llama":
        config = t.LlamaConfig(**text, num_key_value_heads=heads // 2)
        config.use_cache = False
        made = t.LlamaForCausalLM(config)
    elif name == "vit":
        sizes = {"image_size": image.shape[-1], "patch_size": 16, "intermediate_size": inner}
        made = t.ViTModel(t.ViTConfig(hidden_size=width, num_hidden_layers=2, num_attention_heads=heads, **sizes))
    elif name == "resnet":
        small = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [2, 2, 2, 2]}
        made = t.ResNetForImageClassification(t.ResNetConfig(**({} if large else small)))
    elif name == "mobilenet":
        made = t.MobileNetV2ForImageClassification(t.MobileNetV2Config(depth_multiplier=1.0 if large else 0.5))
    else:
        made = UNet()
    return made, (words if name in ("bert", "gpt2", "llama") else image,)


NAMES = ("bert", "gpt2", "llama", "vit", "resnet", "mobilenet", "unet")


def tensors(value: Any) -> list[Any]:
    """The tensors that a module returns, in order."""
    if torch.is_tensor(value):
        return [value]
    items = value.to_tuple() if hasattr(value, "to_tuple") else value
    return [tensor for item in items if item is not None for tensor in tensors(item)]


@pytest.mark.parametrize("machines", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_modules_equal_pytorch(name, machines):
    made, example = module(name)
    made.eval()
    with torch.no_grad():
        expected = [tensor.numpy() for tensor in tensors(made(*example))]
    model = tw.from_torch(made, example)
    plan = model.plan(machines=tw.machines(machines))
    got = tw.run(plan, bind=model.bind(*(tensor.numpy() for tensor in example)))
    got = got if isinstance(got, list) else [got]
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("machines", [1, 4])
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_experts_take_the_tokens_of_the_call(name, machines):
    """Which expert a token goes to is data: the words of the run are others than those of the export."""
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, head_dim=16, use_cache=False,
        **({"num_local_experts": 5} if name == "Mixtral" else {"num_experts": 9, "moe_intermediate_size": 48}),
    )  # fmt: skip
    made = getattr(transformers, f"{name}Model")(config).eval()
    model = tw.from_torch(made, torch.zeros(2, 17, dtype=torch.int64))
    plan = model.plan(machines=machines)
    for words in (torch.randint(0, 500, (2, 17)), torch.full((2, 17), 7)):
        with torch.no_grad():
            expected = made(words)[0].numpy()
        got = tw.run(plan, bind=model.bind(words.numpy()))
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4)


def test_a_batch_that_calls_choose():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.LayerNorm(5)).eval()
    model = tw.from_torch(net, torch.zeros(2, 6), dims={"input": {0: tw.dim("batch", 1, 64)}})
    plan = model.plan(machines=2)
    for batch in (1, 5, 64):
        x = torch.randn(batch, 6)
        wanted = net(x).detach().numpy()
        np.testing.assert_allclose(model(x.numpy())["out"], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(tw.run(plan, bind={"input": x.numpy()}), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(tw.TileweaveError, match="fits no input"):
        tw.from_torch(net, torch.zeros(2, 6), dims={"input": {2: tw.dim("batch")}})
