# SPDX-License-Identifier: MIT OR Apache-2.0
"""Heads over 256 in PyTorch: an autoencoder's attention and a block with shared keys and values."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from tandem_attention.drop_in.sdpa import scaled_dot_product_attention  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula in torch's own operations."""
    return ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v


class VaeAttention(nn.Module):
    """Self-attention of an image autoencoder: one head as wide as the channels, [B, C, H, W]."""

    def __init__(self, channels: int, fused: bool) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        # [B, 3C, H, W] as rows of pixels; the strides of a view, which no kernel has to copy.
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        y = attention(q, k, v) if self.fused else plain(q, k, v)
        return x + self.out(y.squeeze(1).mT.unflatten(2, x.shape[2:]))


class SharedKeyBlock(nn.Module):
    """Causal attention whose values are its keys, with one head of keys: x [B, S, E]."""

    def __init__(self, width: int, heads: int, head_dim: int, fused: bool) -> None:
        super().__init__()
        self.q = nn.Linear(width, heads * head_dim, bias=False)
        self.kv = nn.Linear(width, head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.heads, self.fused = heads, fused

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv = self.kv(x).unsqueeze(1)
        if self.fused:
            y = scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)
        else:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = ((q @ kv.mT) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
            y = scores.softmax(-1) @ kv
        return x + self.out(y.transpose(1, 2).flatten(2))


def train(model: nn.Module, inputs: Tensor) -> list[float]:
    """The losses of a few steps that make the model's output smaller."""
    steps = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        steps.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def test_an_autoencoders_attention_trains_as_with_torch() -> None:
    losses = []
    for fused in (True, False):
        torch.manual_seed(1)
        model = VaeAttention(512, fused)
        losses.append(train(model, torch.randn(2, 512, 4, 5)))
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_block_with_shared_keys_and_values_trains_as_with_torch() -> None:
    losses = []
    for fused in (True, False):
        torch.manual_seed(2)
        model = SharedKeyBlock(32, 4, 512, fused)
        losses.append(train(model, torch.randn(2, 12, 32)))
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_values_may_be_a_view_of_keys() -> None:
    torch.manual_seed(3)
    latent = torch.randn(1, 1, 9, 576, requires_grad=True)
    q = torch.randn(1, 8, 9, 576, requires_grad=True)
    d_o = torch.randn(1, 8, 9, 512)
    o = attention(q, latent, latent[..., :512])
    got = torch.autograd.grad(o, (q, latent), d_o)
    y = plain(q, latent, latent[..., :512])
    want = torch.autograd.grad(y, (q, latent), d_o)
    torch.testing.assert_close(o, y, rtol=1e-5, atol=1e-5)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
