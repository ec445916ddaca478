"""The sweeps of what transformers and their kin are made of, and of weights that a forward computes from parameters."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sweep_checks import Apply, check, check_layers, is_recorded, net, penalties_slowly, penalty_of
from torch import Tensor, nn

from oracles import Network, images, seeded
from widemargin.gradients.path import path_of

COMPUTED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "a weight from two": (lambda h, a, b: F.linear(h, a @ b), ((6, 2), (2, 6))),
    "a positive scale": (lambda h, s: h * s.exp(), ((6,),)),
    "a scale of another shape": (lambda h, s: (h.view(-1, 2, 3) * s.reshape(2, 1)).flatten(1), ((1, 2, 1),)),
    "a scale used twice": (lambda h, s: twice(h, s.exp()), ((6,),)),
    "computed from computed": (lambda h, s: h * (1 + s.exp()).sqrt(), ((6,),)),
    "a bias and a constant": (lambda h, s: torch.tanh(h - (s * torch.arange(6.0, dtype=h.dtype)).sin_()), ((6,),)),
    "a shift": (lambda h, s: torch.tanh(s.square() - h), ((6,),)),
    "over a computed scale": (lambda h, s: h / (1 + s.square()), ((6,),)),
    "a matrix on the right": (lambda h, s: h @ s.t(), ((6, 6),)),
    "by einsum": (lambda h, s: torch.einsum("bi,ij->bj", h, s), ((6, 6),)),
    "by einsum with itself": (lambda h, s: torch.einsum("bi,bj,ij->bi", h, h, s), ((6, 6),)),
    "addcmul": (lambda h, s, t: torch.addcmul(t, s, h), ((6,), (6,))),
    "addcmul of activations": (lambda h, s: torch.addcmul(s, h, h.relu()), ((6,),)),
    "a standardized weight": (lambda h, w: F.linear(h, F.layer_norm(w, (6,))), ((6, 6),)),
    "what nobody uses": (lambda h, s: h * s if s.exp() is not None else h, ((6,),)),
}


def twice(h: Tensor, scale: Tensor) -> Tensor:
    return torch.tanh(h * scale) * scale + scale.flip(0)


@pytest.mark.parametrize("name", [name for name in COMPUTED if name != "a bias and a constant"])
def test_what_is_computed_from_parameters(name: str) -> None:
    function, sizes = COMPUTED[name]
    for activation in (nn.ReLU, nn.Tanh):
        check_layers(lambda: nn.Linear(5, 6), lambda: Apply(function, *sizes), activation, shape=(5,))


def test_an_operator_in_place_on_what_a_parameter_became_is_left() -> None:
    function, sizes = COMPUTED["a bias and a constant"]
    check_layers(lambda: nn.Linear(5, 6), lambda: Apply(function, *sizes), shape=(5,), recorded=False)


def test_frozen_sources_of_a_computed_weight() -> None:
    model = seeded(0, lambda: net(nn.Linear(5, 6), Apply(COMPUTED["a weight from two"][0], (6, 2), (2, 6)), shape=(5,)))
    model[0][1].learned[0].requires_grad_(False)
    check(model, images(3, 5))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    logits = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return (logits if mask is None else logits + mask).softmax(dim=-1) @ v


def lower(size: int, diagonal: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril(diagonal)


ATTENTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "written out": (attend, ()),
    "written out with a bias": (lambda q, k, v, b: attend(q, k, v, b[:, [0, 1, 2, 1]].unsqueeze(0)), ((2, 4, 4),)),
    "by torch": (F.scaled_dot_product_attention, ()),
    "by torch, causal": (partial(F.scaled_dot_product_attention, is_causal=True), ()),
    "by torch, scaled": (partial(F.scaled_dot_product_attention, scale=0.7), ()),
    "by torch, masked": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=lower(4, 1)), ()),
    "by torch, with a bias": (lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b), ((2, 4, 4),)),
    "by torch, with a computed bias": (
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b.view(2, 4, 1).expand(-1, -1, 4)),
        ((2, 4),),
    ),
    "by bmm": (lambda q, k, v: torch.bmm(q.flatten(0, 1), torch.bmm(k.flatten(0, 1).mT, v.flatten(0, 1))), ()),
}


@pytest.mark.parametrize("qkv", ["unbind", "chunk", "split", "index"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str, qkv: str) -> None:
    function, sizes = ATTENTIONS[name]

    def attention(h: Tensor, *learned: Tensor) -> Tensor:
        heads = h.view(-1, 4, 3, 2, 2).permute(2, 0, 3, 1, 4)  # 4 tokens, 2 heads of 2
        if qkv == "index":
            q, k, v = heads[0], heads[1], heads[2]
        elif qkv == "unbind":
            q, k, v = heads.unbind(0)
        else:
            parts = heads.chunk(3) if qkv == "chunk" else heads.split([1, 1, 1], dim=0)
            q, k, v = (part.squeeze(0) for part in parts)
        return function(q, k, v, *learned).reshape(len(h), -1)

    if qkv != "unbind" and name != "by torch":
        pytest.skip("one attention is enough for every way to cut")
    check_layers(lambda: nn.Linear(5, 48), lambda: Apply(attention, *sizes), nn.Tanh, shape=(5,))


def test_parts_that_overlap_and_leave_out() -> None:
    def parts(h: Tensor) -> Tensor:
        one, two = h.split(3, dim=1)
        return one * two.tanh() + h[:, 1:4] * h[:, 2:5] + one

    check_layers(lambda: nn.Linear(5, 6), lambda: Apply(parts), shape=(5,))


def test_a_row_that_attends_to_nothing() -> None:
    def attention(h: Tensor) -> Tensor:
        q, k, v = (factor * h.view(-1, 2, 3) for factor in (1, 2, 3))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=lower(2, -1)).flatten(1)

    check_layers(lambda: nn.Linear(5, 6), lambda: Apply(attention), shape=(5,))


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1,)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_over_several_axes(shape: tuple[int, ...], affine: bool) -> None:
    norm = lambda: nn.LayerNorm(shape, elementwise_affine=affine, eps=0.1)  # noqa: E731
    view = lambda: Apply(lambda h: h.view(-1, 6 // math.prod(shape), *shape).transpose(0, 1))  # noqa: E731
    back = lambda: Apply(lambda h: h.transpose(0, 1).flatten(1))  # noqa: E731
    check_layers(lambda: nn.Linear(5, 6), view, norm, back, nn.Tanh, shape=(5,))


def vit(width: int = 6, heads: int = 2) -> nn.Module:
    """Class token, position embedding, layer scale, attention before an MLP."""

    def block(self: nn.Module, x: Tensor) -> Tensor:
        count = len(x)
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(count, -1, -1), x], dim=1) + self.position
        q, k, v = self.qkv(self.norm1(x)).reshape(count, -1, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.scale * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        x = x + self.down(F.gelu(self.up(self.norm2(x)))) * self.scale
        return self.head(self.norm3(x)[:, 0])

    return Network(
        block,
        patches=nn.Conv2d(1, width, 2, stride=2),
        token=nn.Parameter(torch.randn(1, 1, width)),
        position=nn.Parameter(torch.randn(1, 5, width)),
        qkv=nn.Linear(width, 3 * width),
        out=nn.Linear(width, width),
        scale=nn.Parameter(torch.rand(width)),
        up=nn.Linear(width, 2 * width),
        down=nn.Linear(2 * width, width),
        head=nn.Linear(width, 3),
        **{f"norm{i}": nn.LayerNorm(width) for i in (1, 2, 3)},
    )


def test_vision_transformer() -> None:
    check(seeded(0, vit), images(2, 1, 4, 4))


def swin(width: int = 4) -> nn.Module:
    """Shifted windows of 2 x 2 with relative position biases, and one merging of patches."""
    places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
    index = ((places[:, :, None] - places[:, None]) + 1).mul(torch.tensor([3, 1]).view(2, 1, 1)).sum(0)

    def block(self: nn.Module, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        shifted = torch.roll(self.norm(x), shifts=(-1, -1), dims=(1, 2))
        windows = shifted.view(-1, 2, 2, 2, 2, width).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, width)
        q, k, v = self.qkv(windows).view(-1, 4, 3, 1, width).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(4, 4, 1).permute(2, 0, 1).contiguous().unsqueeze(0)
        out = attend(q * width**-0.5, k, v, bias).transpose(1, 2).reshape(-1, 4, width)
        back = out.view(-1, 2, 2, 2, 2, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4, width)
        x = x + torch.roll(back, shifts=(1, 1), dims=(1, 2))
        merged = x.view(len(x), 2, 2, 2, 2, width).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.head(F.gelu(self.merge(merged)).mean((1, 2)))

    return Network(
        block,
        patches=nn.Conv2d(1, width, 1),
        norm=nn.LayerNorm(width),
        qkv=nn.Linear(width, 3 * width),
        table=nn.Parameter(torch.randn(9, 1)),
        index=nn.Buffer(index),
        merge=nn.Linear(4 * width, 5),
        head=nn.Linear(5, 3),
    )


def test_shifted_windows() -> None:
    check(seeded(0, swin), images(2, 1, 4, 4))


def convnext(width: int = 4) -> nn.Module:
    """A block of ConvNeXt: depthwise convolution, norm of channels, layer scale in front of the residual sum."""

    def block(self: nn.Module, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.down(F.gelu(self.up(h))).permute(0, 3, 1, 2)
        return self.head((x + h.mul(self.scale.reshape(1, -1, 1, 1))).mean((2, 3)))

    return Network(
        block,
        stem=nn.Conv2d(1, width, 2, stride=2),
        depthwise=nn.Conv2d(width, width, 3, padding=1, groups=width),
        norm=nn.LayerNorm(width),
        up=nn.Linear(width, 2 * width),
        down=nn.Linear(2 * width, width),
        scale=nn.Parameter(torch.rand(width)),
        head=nn.Linear(width, 3),
    )


def test_convnext_block() -> None:
    check(seeded(0, convnext), images(2, 1, 6, 6))


def mixer(width: int = 5) -> nn.Module:
    """Multi-layer perceptrons over tokens and over channels, and a gate."""

    def block(self: nn.Module, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        one, two = self.channels(x).chunk(2, dim=-1)
        return self.head((one * F.silu(two)).mean(dim=1))

    tokens = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
    parts = {"patches": nn.Conv2d(1, width, 2, stride=2), "norm": nn.LayerNorm(width), "tokens": tokens}
    return Network(block, **parts, channels=nn.Linear(width, 2 * width), head=nn.Linear(width, 3))


def test_mixer() -> None:
    check(seeded(0, mixer), images(2, 1, 4, 4))


@pytest.mark.parametrize("make", [vit, swin, convnext, mixer])
def test_half_precision_of_what_transformers_are_made_of(make: Callable[[], nn.Module]) -> None:
    """Under autocast the sweeps agree with the float64 penalty to what bfloat16 gives."""
    model, x = seeded(0, make), images(4, 1, 4 if make is not convnext else 6, 4 if make is not convnext else 6)
    single = seeded(0, make).float()
    single.load_state_dict(model.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert is_recorded(single, x.float())
        penalty = penalty_of("approximate", single, x.float())
    penalty.sum().backward()
    expected = penalties_slowly(model, x)["approximate"]
    torch.testing.assert_close(penalty.double(), expected, rtol=0.1, atol=0.02)
    gradients = torch.autograd.grad(expected.sum(), list(model.parameters()), allow_unused=True)
    pairs = [(p.grad, g) for p, g in zip(single.parameters(), gradients, strict=True) if g is not None]
    found = torch.cat([p.double().flatten() for p, _ in pairs])
    right = torch.cat([g.flatten() for _, g in pairs])
    assert float((found - right).norm() / right.norm()) < 0.1


def test_a_multi_head_attention_of_torch_is_named() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.attention, self.head = nn.Linear(5, 8), nn.MultiheadAttention(4, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x).view(2, -1, 4)
            return self.head(self.attention(h, h, h, need_weights=False)[0].reshape(len(x), -1))

    path = path_of(seeded(0, Attends), images(3, 5))
    assert path.way == "double backward"
    assert "multi_head_attention_forward" in path.reason
