# SPDX-License-Identifier: MIT OR Apache-2.0
"""A case of `tandem bench --preset models --list` as PyTorch has it: its words, its tensors, and one head of it in double."""
import re

import torch
from bench_peers import DTYPES, ULP, usual_errors

CHUNK = 1 << 24  # scores of the reference that are held at once
WHOLE = 1 << 31  # scores of a group of heads up to which the reference has all rows


class Case:
    """What a problem line says (docs/guide/problem-line.md), as far as the models' lines go."""

    def __init__(self, listed):
        self.listed, self.name = listed, listed["case"]
        for key in ("B", "Hq", "Hk", "Sq", "Sk", "D", "Dv"):
            setattr(self, key, listed[key])
        self.words = words = listed["problem"].split()
        self.dtype = DTYPES[listed["dtype"]]
        self.backward = listed.get("ops", ["fwd", "bwd"]) != ["fwd"]
        self.causal = any(word.startswith("causal") for word in words)
        bottom = "causal_bottom_right" in words or "bottom_right" in words
        self.off = self.Sk - self.Sq if bottom else 0
        self.left, self.right = (int(self.value(key, -1)) for key in ("left", "right"))
        self.scale = self.value("scale", self.D**-0.5)
        self.softcap, self.dropout = self.value("softcap", 0.0), self.value("dropout", 0.0)
        self.alibi, self.sink = "alibi" in words, "sink" in words
        self.grads = next((word[6:] for word in words if word.startswith("grads=")), "qkv")
        self.keep = next((word for word in words if word.startswith("keep:")), None)
        self.bias = listed.get("bias")
        self.lengths_q, self.lengths_kv = listed.get("lengths_q"), listed.get("lengths_kv")
        self.packed = any(word.startswith(("q_packed", "kv_packed")) for word in words)
        self.window = self.left >= 0 or self.right >= 0
        # Nothing but attention, or with a causal mask from the top left.
        self.dense = bool(self.bias or self.keep or self.alibi or (self.lengths_kv and not self.packed))
        self.wants_flex = self.dense or self.window or self.packed or self.sink or self.softcap > 0

    def value(self, key, absent):
        word = next((word for word in self.words if re.match(rf"{key}=", word)), None)
        if word is None:
            return absent
        text = word[len(key) + 1 :]
        return float.fromhex(text) if "0x" in text else float(text)

    def offsets(self, kv):
        """Where the entries of a packed tensor begin, [B + 1]."""
        ends = [0]
        for length in self.lengths_kv if kv else self.lengths_q:
            ends.append(ends[-1] + length)
        return ends


class Tensors:
    """Inputs of a case: [B,H,S,D], or packed [1,H,total,D]."""

    def __init__(self, case, device):
        self.case, self.device, self.reference = case, device, None
        self.generator = torch.Generator(device).manual_seed(1)
        rows_q, rows_kv, batch = case.Sq, case.Sk, case.B
        if case.packed:
            batch, rows_q, rows_kv = 1, case.offsets(False)[-1], case.offsets(True)[-1]
        self.q = self.normal((batch, case.Hq, rows_q, case.D))
        self.k = self.normal((batch, case.Hk, rows_kv, case.D))
        self.v = self.normal((batch, case.Hk, rows_kv, case.Dv))
        self.d_o = self.normal((batch, case.Hq, rows_q, case.Dv)) if case.backward else None
        self.qkv = (self.q, self.k, self.v)
        self.bias = self.sink = self.slopes = None
        if case.bias:
            self.bias = self.normal(case.bias["dims"], DTYPES[case.bias["dtype"]])
        if case.sink:
            self.sink = self.normal((case.Hq,), torch.float32)
        if case.alibi:
            heads = torch.arange(1, case.Hq + 1, device=device)
            self.slopes = torch.exp2(-8.0 * heads / case.Hq)
        if case.lengths_q and not case.packed and case.backward:
            for b, length in enumerate(case.lengths_q):  # rows behind a sequence take no part
                self.d_o[b, :, length:] = 0
        self.keep = self.make_keep() if case.keep else None
        if case.backward:
            for tensor in self.learned():
                tensor.requires_grad_()

    def normal(self, shape, dtype=None):
        x = torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return x.to(dtype or self.case.dtype)

    def learned(self):
        case = self.case
        return [*self.qkv] + [self.bias] * ("b" in case.grads) + [self.sink] * ("s" in case.grads)

    def make_keep(self):
        """[B,H,rows,Sk] as harness/models.cpp has it."""
        case = self.case
        batch, heads, rows = (int(n) for n in case.keep.split(":")[1].split("x"))
        b = torch.arange(batch, device=self.device)[:, None, None, None]
        j = torch.arange(case.Sk, device=self.device)
        if rows == 1:
            return (j < case.Sk - b % 4 * case.Sk // 16).expand(batch, heads, 1, case.Sk)
        i = torch.arange(rows, device=self.device)[:, None]
        apart = (7 * i >= 4 * rows) != (7 * j >= 4 * case.Sk)
        return ((b % 4 != 3) | ~apart).expand(batch, heads, rows, case.Sk)

    def visible(self, b, i, length=None):
        """Of the query rows i of an entry: which keys they see, [len(i), Sk], and t = i + off - j."""
        case = self.case
        j = torch.arange(case.Sk if length is None else length, device=self.device)
        t = i[:, None] + case.off - j
        shown = torch.ones_like(t, dtype=torch.bool)
        if case.causal:
            shown &= t >= 0
        if case.left >= 0:
            shown &= t <= case.left
        if case.right >= 0:
            shown &= t >= -case.right
        if case.lengths_kv and not case.packed:
            shown &= j < case.lengths_kv[b]
        if self.keep is not None:
            rows = self.keep[b % self.keep.shape[0], 0]
            shown &= rows if rows.shape[0] == 1 else rows[i]
        return shown, t

    def band(self):
        """Keys that every entry and head shows, [Sq,Sk], or None: all. Lengths and keep are not in it."""
        case = self.case
        if not (case.causal or case.window):
            return None
        i = torch.arange(case.Sq, device=self.device)
        t = i[:, None] + case.off - torch.arange(case.Sk, device=self.device)
        shown = t >= 0 if case.causal else torch.ones_like(t, dtype=torch.bool)
        if case.left >= 0:
            shown &= t <= case.left
        if case.right >= 0:
            shown &= t >= -case.right
        return shown

    def entry(self, b):
        """q, k, v, d_o of an entry without what lies behind its sequences, [H,rows,D]."""
        case = self.case
        if case.packed:
            q, kv = case.offsets(False), case.offsets(True)
            rows, keys = slice(q[b], q[b + 1]), slice(kv[b], kv[b + 1])
            b = 0
        else:
            rows, keys = slice(0, case.lengths_q[b] if case.lengths_q else case.Sq), slice(0, case.Sk)
        cut = [self.q[b, :, rows], self.k[b, :, keys], self.v[b, :, keys]]
        return [x.detach() for x in cut], self.d_o[b, :, rows] if case.backward else None, (b, rows, keys)


def steps(case, tensors, b, h, rows, q, k, v, d_o, exact):
    """Some rows of a head step by step, in the dtype of q: o, d_q, their parts of d_k and d_v; of exact ones
    also the sums of the magnitudes of the terms of each; and which keys the rows see."""
    shown, t = tensors.visible(b, rows, len(k))
    s = (q @ k.T) * case.scale
    slope = None
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
        slope = 1 - (s / case.softcap) ** 2
    if tensors.bias is not None:
        bias = tensors.bias.detach()
        bias = bias[b % bias.shape[0], h % bias.shape[1]]
        s = s + (bias if bias.shape[0] == 1 else bias[rows]).to(s.dtype)
    if tensors.slopes is not None:
        s = s - (tensors.slopes[h] * t.abs()).to(s.dtype)
    s = s.masked_fill(~shown, float("-inf"))
    if tensors.sink is not None:
        last = tensors.sink.detach()[h].to(s.dtype).expand(len(s), 1)
        p = torch.softmax(torch.cat([s, last], 1), -1)[:, :-1]
    else:
        p = torch.softmax(s, -1)
    p = p.nan_to_num(0.0)  # of rows that see nothing
    values, terms = [p @ v], [p @ v.abs()] if exact else []
    if d_o is not None:
        d_p, delta = d_o @ v.T, (d_o * values[0]).sum(-1, keepdim=True)
        d_s = p * (d_p - delta)
        e = p * (d_p.abs() + (d_o * values[0]).abs().sum(-1, keepdim=True)) if exact else None
        if slope is not None:
            d_s = d_s * slope
        values += [(d_s @ k) * case.scale, (d_s.T @ q) * case.scale, p.T @ d_o]
        if exact:
            terms += [(e @ k.abs()) * case.scale, (e.T @ q.abs()) * case.scale, p.T @ d_o.abs()]
    return values, terms, shown


class Reference:
    """The last head of the last entry, in double and stepwise in the case's own type, and its group's d_k and d_v."""

    def __init__(self, case, tensors):
        self.case, self.b, self.h = case, case.B - 1, case.Hq - 1
        (q, k, v), d_o, self.at = tensors.entry(self.b)
        group = case.Hq // case.Hk
        sq, sk = q.shape[1], k.shape[1]
        self.whole = group * sq * sk <= WHOLE
        device = q.device
        self.rows = torch.arange(sq, device=device)
        if not self.whole:  # both ends of the sequence
            self.rows = torch.cat([self.rows[:128], self.rows[-128:]])
        keys = self.whole and d_o is not None
        self.roundings = 8 + case.scale * case.D * q[-1].double().abs().mean() * k[-1].double().abs().mean()
        # exact, stepwise, terms: of o, d_q, d_k, d_v
        found = [[[], []], [[], []], [[], []]]
        sums = [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
        counts, self.key_counts = [], torch.zeros(sk, device=device, dtype=torch.int64)
        for h in range(self.h - group + 1 if keys else self.h, self.h + 1):
            for rows in self.rows.split(max(1, CHUNK // max(sk, 1))):
                head = [q[h, rows], k[-1], v[-1], None if d_o is None else d_o[h, rows]]
                double = [None if x is None else x.double() for x in head]
                exact, terms, shown = steps(case, tensors, self.b, h, rows, *double, True)
                own, _, _ = steps(case, tensors, self.b, h, rows, *head, False)
                for which, values in enumerate((exact, own, terms)):
                    if h == self.h:
                        for n, value in enumerate(values[:2]):
                            found[which][n].append(value)
                    for n, value in enumerate(values[2:] if keys else ()):
                        sums[which][n] = sums[which][n] + value.to(torch.promote_types(value.dtype, torch.float32))
                self.key_counts += shown.sum(0)
                if h == self.h:
                    counts.append(shown.sum(-1))
        self.counts = torch.cat(counts)
        self.values = [[torch.cat(parts) for parts in kind if parts] for kind in found]
        if keys:
            for which in range(3):
                self.values[which] += sums[which]

    def ratio(self, n, got):
        """Of o, d_q, d_k, d_v (0 to 3): the worst row's error, 2 being the limit (harness/compare.h)."""
        exact, own, terms = (kind[n] for kind in self.values)
        counts = self.counts if n < 2 else self.key_counts
        got, own, terms = got.double(), own.double(), terms.amax(-1)
        if not torch.isfinite(got).all():
            return 1e9
        error, step = (got - exact).abs().amax(-1), (own - exact).abs().amax(-1)
        bins = counts.clamp_min(1).double().log2().floor()
        usual = usual_errors(step / terms.clamp_min(1e-300), bins) * terms
        bound = 2 * torch.maximum(step, usual) + ULP[self.case.listed["dtype"]] * exact.abs().amax(-1)
        bound += self.roundings * 2.0**-24 * terms
        seen = counts > 0
        return (2 * error / bound.clamp_min(1e-300))[seen].max().item() if seen.any() else 0.0


def head_errors(case, tensors, o, gradients):
    """Error ratios of forward and backward, None where there is nothing to compare with."""
    if case.dropout:
        return None, None
    if tensors.reference is None:
        tensors.reference = Reference(case, tensors)
    r = tensors.reference
    b, rows, keys = r.at
    forward = r.ratio(0, o[b, r.h, rows][r.rows])
    if gradients is None:
        return forward, None
    backward = [r.ratio(1, gradients[0][b, r.h, rows][r.rows])]
    if r.whole:
        backward += [r.ratio(n, gradients[n - 1][b, -1, keys]) for n in (2, 3)]
    return forward, max(backward)
