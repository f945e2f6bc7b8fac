# SPDX-License-Identifier: MIT OR Apache-2.0
"""attn_implementation="tandem" against "eager" on small models with random weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in import transformers as drop_in  # noqa: E402

ROWS, WORDS = 12, 48
SMALL = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
SLIDING = ["sliding_attention", "full_attention"]


def llama():
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED)


def mistral():
    return transformers.MistralForCausalLM, transformers.MistralConfig(**GROUPED, sliding_window=5)


def gemma2():
    return transformers.Gemma2ForCausalLM, transformers.Gemma2Config(
        **GROUPED, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0,
        query_pre_attn_scalar=16, layer_types=SLIDING,
    )  # fmt: skip


def gpt2():
    return transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def bert():
    return transformers.BertForMaskedLM, transformers.BertConfig(**SMALL)


def gpt_oss():
    return transformers.GptOssForCausalLM, transformers.GptOssConfig(
        **GROUPED, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
        layer_types=SLIDING, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip


def t5():
    return transformers.T5ForConditionalGeneration, transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=2,
    )  # fmt: skip


def gemma3():
    text = transformers.Gemma3TextConfig(
        **GROUPED, head_dim=8, sliding_window=5, query_pre_attn_scalar=16, layer_types=SLIDING,
    )  # fmt: skip
    vision = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=8, patch_size=4,
    )  # fmt: skip
    return transformers.Gemma3ForConditionalGeneration, transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=WORDS - 1,
    )  # fmt: skip


DECODERS = [llama, mistral, gemma2, gpt2, gpt_oss]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    drop_in.register()


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of Tandem."""
    seen = []
    attention = drop_in.attention

    def record(*args, **kwargs):
        seen.append(kwargs)
        return attention(*args, **kwargs)

    monkeypatch.setattr(drop_in, "attention", record)
    return seen


def build(make, implementation):
    """The same weights for every implementation, larger than at the start of training."""
    kind, config = make()
    torch.manual_seed(1)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 or "sinks" in name:
                weight.copy_(torch.randn_like(weight) * 0.2)
    assert model.config._attn_implementation == implementation
    return model


def words(batch=2):
    generator = torch.Generator(torch.get_default_device()).manual_seed(3)
    return torch.randint(3, WORDS, (batch, ROWS), generator=generator)


def left_padding():
    mask = torch.ones(2, ROWS, dtype=torch.long)
    mask[1, :4] = 0
    return mask


def step(model, there=None, **batch):
    """Logits where there are words, and the gradients of a loss of these logits."""
    logits = model(**batch).logits
    if there is not None:
        logits = logits * there[..., None]
    logits.square().sum().backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def compare(make, there=None, **batch):
    (want, want_d), (got, got_d) = (
        step(build(make, name), there, **batch) for name in ("eager", "tandem")
    )
    assert want.abs().max() > 0.05
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
    assert got_d.keys() == want_d.keys()
    # Some gradients are 0 but for rounding: measured by the largest of the model.
    largest = max(d.abs().max() for d in want_d.values())
    for name, d in want_d.items():
        torch.testing.assert_close(
            got_d[name], d, atol=float(largest) * 1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
    return want_d


@pytest.mark.parametrize("make", [*DECODERS, bert])
@pytest.mark.parametrize("padded", [False, True])
def test_model(make, padded, calls):
    mask = left_padding() if padded else None
    gradients = compare(make, mask, input_ids=words(), attention_mask=mask)
    assert len(calls) == 2
    if make is gpt_oss:
        assert all(gradients[n].abs().max() > 1e-4 for n in gradients if "sinks" in n)


def test_what_reaches_attention(calls):
    for make in (llama, mistral, gemma2, gpt_oss):
        build(make, "tandem")(words())
    plain, _, window, _, capped, _, _, sinks = calls
    # A plain causal mask is not made: it is a flag.
    assert plain["causal"] == "top_left"
    assert plain["keep"] is None
    assert window["keep"] is None
    assert window["spans"].shape == (1, 1, ROWS, 2)
    assert not window["causal"]
    assert capped["softcap"] == 2.0
    assert sinks["sink"].shape == (4,)


def test_t5(calls):
    mask = left_padding().flip(1)
    gradients = compare(
        t5, None, input_ids=words(), attention_mask=mask, decoder_input_ids=words().flip(1)
    )
    assert len(calls) == 6
    assert all(c["bias"] is not None and c["keep"] is None for c in calls)
    # Padding: the encoder's layers, and those of the decoder that look at it.
    assert sum(c["spans"] is not None for c in calls) == 4
    assert all(d.abs().max() > 0 for n, d in gradients.items() if "relative_attention_bias" in n)


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(make, cache):
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache,
               "attention_mask": left_padding(), "output_logits": True, "min_new_tokens": 6,
               "return_dict_in_generate": True, "disable_compile": True}  # fmt: skip
    want, got = (build(make, n).generate(words(), **options) for n in ("eager", "tandem"))
    torch.testing.assert_close(
        torch.stack(got.logits), torch.stack(want.logits), atol=5e-5, rtol=5e-5
    )


def test_masks_that_the_user_makes():
    """Four dimensions, bool or added, are handed through."""
    torch.manual_seed(5)
    keep = (torch.rand(2, 1, ROWS, ROWS) > 0.3) | torch.eye(ROWS, dtype=torch.bool)
    added = torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)
    want, _ = step(build(llama, "eager"), input_ids=words(), attention_mask=added)
    for mask in (keep, added):
        got, _ = step(build(llama, "tandem"), input_ids=words(), attention_mask=mask)
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def given(calls):
    """Of each call, the mask that it got and its size."""
    return [{n: tuple(c[n].shape) for n in ("spans", "keep") if c[n] is not None} for c in calls]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("make", [llama, mistral, gemma2])
def test_sequences_packed_by_position(make, batch, calls):
    positions = torch.cat((torch.arange(7), torch.arange(5)))[None]
    if batch == 2:
        positions = torch.cat((positions, torch.cat((torch.arange(3), torch.arange(9)))[None]))
    # With a cache, transformers does not look for sequences in a row.
    compare(make, None, input_ids=words(batch), position_ids=positions, use_cache=False)
    assert given(calls) == [{"spans": (batch, 1, ROWS, 2)}] * 2


@pytest.mark.parametrize("make", [bert, mistral])
def test_padding_is_spans(make, calls):
    compare(make, left_padding(), input_ids=words(), attention_mask=left_padding())
    assert given(calls) == [{"spans": (2, 1, ROWS, 2)}] * 2


def test_inference_mode(calls):
    model = build(llama, "tandem")
    batch = {"input_ids": words(), "attention_mask": left_padding()}
    want = model(**batch).logits
    with torch.inference_mode():
        torch.testing.assert_close(model(**batch).logits, want)
    assert given(calls) == [{"spans": (2, 1, ROWS, 2)}] * 4


def test_images_see_themselves_both_ways(calls):
    """Gemma 3: two images in the text of the first row, one behind the other, one in the second."""
    types = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1] + [0] * 7])
    batch = {
        "input_ids": words(),
        "token_type_ids": types,
        "attention_mask": torch.ones_like(types),
    }
    compare(gemma3, None, **batch)
    masks = given(calls)
    assert len(masks) == 2
    assert all(m.keys() == {"spans"} for m in masks)
    # Without the types it is another model: what they show is seen.
    plain, images = (
        build(gemma3, "tandem")(**{**batch, "token_type_ids": t}).logits
        for t in (torch.zeros_like(types), types)
    )
    assert (plain - images).abs().max() > 1e-2


def test_masks_that_have_no_spans_or_were_changed(calls):
    """Three intervals of rows a key, a mask that is written into, and one made of a mask."""
    from transformers import AttentionMaskInterface

    make = AttentionMaskInterface()["tandem"]
    sizes = {"batch_size": 2, "q_length": ROWS, "kv_length": ROWS, "allow_is_causal_skip": False}
    q, k = rand(2, 2, ROWS, 8), rand(2, 2, ROWS, 8, seed=1)
    full = torch.nn.functional.scaled_dot_product_attention

    def check(mask, kind):
        got, _ = drop_in.attention_forward(module(True), q, k, k, mask)
        torch.testing.assert_close(got, full(q, k, k, mask).transpose(1, 2))
        assert given(calls[-1:])[0].keys() == {kind}

    check(make(**sizes, mask_function=lambda b, h, i, j: (i % 4 == j % 4) | (i == j)), "keep")
    check(make(**sizes), "spans")
    changed = make(**sizes)
    changed[:, :, 5, 2] = False
    check(changed, "keep")
    check(make(**sizes) | torch.eye(ROWS, dtype=torch.bool), "keep")
    longer = make(**{**sizes, "kv_length": ROWS + 3})
    got, _ = drop_in.attention_forward(module(True), q, k, k, longer)
    torch.testing.assert_close(got, full(q, k, k, is_causal=True).transpose(1, 2))
    assert given(calls[-1:])[0].keys() == {"spans"}
    row = make(**{**sizes, "q_length": 1, "q_offset": 4})
    got, _ = drop_in.attention_forward(module(True), q[:, :, :1], k, k, row)
    torch.testing.assert_close(got, full(q[:, :, :1], k, k, row).transpose(1, 2))
    assert given(calls[-1:])[0].keys() == {"keep"}


def module(is_causal):
    made = torch.nn.Module()
    made.is_causal = is_causal
    return made


def rand(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator(torch.get_default_device()).manual_seed(seed + sum(shape))
    )


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_sequences_packed_by_offsets(is_causal, window):
    """As a collator of flattened batches says them, where a model makes no mask."""
    q, k, v = rand(1, 4, 12, 8), rand(1, 2, 12, 8, seed=1), rand(1, 2, 12, 8, seed=2)
    cu = torch.tensor([0, 7, 12], dtype=torch.int32)
    got, _ = drop_in.attention_forward(
        module(is_causal), q, k, v, None, sliding_window=window, cu_seq_lens_q=cu,
        cu_seq_lens_k=cu, max_length_q=7, max_length_k=7,
    )  # fmt: skip
    entry = torch.arange(12) >= 7
    t = torch.arange(12)[:, None] - torch.arange(12)
    seen = entry[:, None] == entry
    if is_causal:
        seen &= t >= 0
    if window:
        seen &= t.abs() < window
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    torch.testing.assert_close(got, want.transpose(1, 2))


def test_alignment_and_flags():
    """Without a mask: causal from the module or the argument, top left, and not for one query."""
    q, k = rand(1, 2, 4, 8), rand(1, 2, 9, 8)
    full = torch.nn.functional.scaled_dot_product_attention
    for rows, made, argument, causal in (
        (4, True, None, True), (4, False, None, False), (4, True, False, False),
        (4, False, True, True), (1, True, None, False),
    ):  # fmt: skip
        got, weights = drop_in.attention_forward(
            module(made), q[:, :, :rows], k, k, None, is_causal=argument, scaling=0.3
        )
        want = full(q[:, :, :rows], k, k, is_causal=causal, scale=0.3).transpose(1, 2)
        torch.testing.assert_close(got, want)
        assert got.is_contiguous()
        assert weights is None


def test_bias_with_masks_longer_than_the_keys_and_one_query_for_the_batch():
    q, k = rand(1, 2, 4, 8), rand(3, 2, 9, 8)
    bias, keep = rand(1, 2, 4, 12), rand(3, 1, 4, 12) > -0.5
    added = rand(3, 1, 4, 12, seed=4)
    full = torch.nn.functional.scaled_dot_product_attention
    for mask, total in (
        (keep, bias.masked_fill(~keep, -float("inf"))), (added, bias + added), (None, bias),
    ):  # fmt: skip
        got, _ = drop_in.attention_forward(module(False), q, k, k, mask, position_bias=bias)
        want = full(q.expand(3, 2, 4, 8), k, k, total[..., :9]).transpose(1, 2)
        torch.testing.assert_close(got, want)


def test_dropout_in_training():
    q = torch.zeros(1, 2, 64, 8)
    v = torch.ones(1, 2, 64, 8)
    torch.manual_seed(0)
    got, _ = drop_in.attention_forward(module(False), q, q, v, None, dropout=0.25)
    assert 0.9 < got.mean() < 1.1
    assert got.std() > 0.01


def test_refusals():
    q = rand(1, 2, 4, 8)
    cu = torch.tensor([0, 4], dtype=torch.int32)
    for kind, options, sentence in (
        (UnsupportedError, {"output_attentions": True}, "eager"),
        (UnsupportedError, {"sinks": rand(1, 2, 4, 1)}, "sinks of each token"),
        (UnsupportedError, {"block_table": cu}, "paged cache"),
        (InvalidArgumentError, {"attention_mask": torch.ones(4, 4)}, "2 dimensions"),
        (UnsupportedError, {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "position_bias": q},
         "position_bias"),
    ):  # fmt: skip
        with pytest.raises(kind, match=sentence):
            drop_in.attention_forward(module(True), q, q, q, **{"attention_mask": None, **options})
    two = rand(2, 2, 4, 8)
    with pytest.raises(InvalidArgumentError, match="batch of 1"):
        drop_in.attention_forward(
            module(True), two, two, two, None, cu_seq_lens_q=cu, cu_seq_lens_k=cu
        )


def test_another_name():
    drop_in.register("tandem_twice")
    model = build(llama, "tandem_twice")
    torch.testing.assert_close(model(words()).logits, build(llama, "tandem")(words()).logits)
