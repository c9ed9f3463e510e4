"""Shapes of layers in known models, 210 in all: each operator computes them by kernels alone, and right."""

import functools
import itertools

import pytest
import torch
from torch.nn import functional

import tmapipe.torch as tt
from tmapipe.torch import operators, products
from tmapipe.tuning import choose

# width, of the feed-forward layer, of keys and values, words: of models from 0.1 to 70 billion parameters.
MODELS = {
    "GPT-2": (768, 3072, 768, 50257),
    "GPT-2 XL": (1600, 6400, 1600, 50257),
    "BERT large": (1024, 4096, 1024, 30522),
    "T5 small": (512, 2048, 512, 32128),
    "OPT 1.3B": (2048, 8192, 2048, 50272),
    "Phi-2": (2560, 10240, 2560, 51200),
    "Gemma 2B": (2048, 16384, 256, 256000),
    "Llama 3 8B": (4096, 14336, 1024, 128256),
    "Qwen2 7B": (3584, 18944, 512, 152064),
    "Llama 2 70B": (8192, 28672, 1024, 32000),
}
# images, channels, extent, filters, window, stride, padding: of ResNet-50, ConvNeXt and U-Nets.
CONVOLUTIONS = [
    (8, 3, 224, 64, 7, 2, 3), (8, 64, 56, 64, 1, 1, 0), (8, 64, 56, 64, 3, 1, 1), (8, 64, 56, 256, 1, 1, 0),
    (8, 256, 56, 128, 1, 1, 0), (8, 128, 56, 128, 3, 2, 1), (8, 256, 56, 512, 1, 2, 0), (8, 128, 28, 128, 3, 1, 1),
    (8, 512, 28, 256, 1, 1, 0), (8, 256, 28, 256, 3, 2, 1), (8, 256, 14, 256, 3, 1, 1), (8, 1024, 14, 512, 1, 1, 0),
    (8, 512, 14, 512, 3, 2, 1), (8, 512, 7, 512, 3, 1, 1), (8, 2048, 7, 512, 1, 1, 0), (8, 3, 224, 96, 4, 4, 0),
    (8, 96, 56, 192, 2, 2, 0), (2, 4, 64, 320, 3, 1, 1), (2, 320, 64, 320, 3, 1, 1), (2, 640, 32, 640, 3, 1, 1),
]  # fmt: skip
# heads, of keys, d, causal: 4 lengths each.
HEADS = [(12, 12, 64, True), (16, 16, 64, False), (32, 8, 128, True), (8, 1, 256, True), (32, 32, 96, False)]
LENGTHS = (128, 197, 1024, 2048)


def half(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def close(found, exact, limit=1e-2):
    assert found.shape == exact.shape and (found.double() - exact).norm() <= limit * exact.norm()


@pytest.fixture(autouse=True)
def by_kernels_alone(monkeypatch):
    """Products are chosen by the estimate: nothing is compiled to be measured."""
    for module in (operators, products):
        monkeypatch.setattr(module, "choose", functools.partial(choose, look=1))
    with tt.kernels_only():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_products(name):
    """Queries with keys and values, both layers of the feed-forward network, and the words of one token: 90 in all."""
    width, hidden, kv, words = MODELS[name]
    layers = [(width + 2 * kv, width), (hidden, width), (width, hidden)]
    for tokens, (n, k) in [*itertools.product((77, 512), layers), *itertools.product((2048,), layers[:2])]:
        x, weight = half(tokens, k), half(n, k)
        close(tt.linear(x, weight), functional.linear(x.float(), weight.float()).double())
    x, weight = half(1, width), half(words, width)
    close(tt.linear(x, weight), functional.linear(x.float(), weight.float()).double())


@pytest.mark.parametrize("name", MODELS)
def test_rows(name):
    """Norms of two numbers of tokens, losses of words, softmax of words and of scores: 80 in all."""
    width, _, _, words = MODELS[name]
    for tokens in (77, 512):
        x, weight, bias = half(tokens, width), half(width), half(width)
        close(tt.rms_norm(x, weight), functional.rms_norm(x.double(), (width,), weight.double(), 1e-6))
        close(
            tt.layer_norm(x, weight, bias), functional.layer_norm(x.double(), (width,), weight.double(), bias.double())
        )
    logits, target = half(64, words), torch.randint(0, words, (64,), device="cuda")
    close(
        tt.cross_entropy(logits, target, reduction="none"),
        functional.cross_entropy(logits.double(), target, reduction="none"),
    )
    close(tt.softmax(logits), torch.softmax(logits.double(), -1))
    close(tt.log_softmax(logits), torch.log_softmax(logits.double(), -1))
    scores = half(4, 16, 197)
    close(tt.softmax(scores), torch.softmax(scores.double(), -1))


@pytest.mark.parametrize("part", range(4))
def test_convolutions(part):
    """20 in all."""
    for images, channels, extent, filters, window, stride, padding in CONVOLUTIONS[part::4]:
        x, weight, bias = half(images, channels, extent, extent), half(filters, channels, window, window), half(filters)
        exact = functional.conv2d(x.float(), weight.float(), bias.float(), stride, padding)
        close(tt.conv2d(x, weight, bias, stride, padding), exact.double())


@pytest.mark.parametrize("heads, of_keys, d, causal", HEADS)
def test_attention(heads, of_keys, d, causal):
    """20 in all."""
    for tokens in LENGTHS:
        q, k, v = (half(2, h, tokens, d) for h in (heads, of_keys, of_keys))
        found = tt.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        wide = (x.double() for x in (q, k, v))
        close(found, functional.scaled_dot_product_attention(*wide, is_causal=causal, enable_gqa=True))
