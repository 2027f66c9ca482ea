"""Templates of expressions and statements, whose places are filled at random.

====== ===========================================
place  filled with
====== ===========================================
{f}    a float tensor; {g}: another one, or the same
{t}    a tensor of any dtype
{q}    an integer tensor
{i}    an integer computed from sizes; {j}: another
{n}    a size of a tensor
{k}    2 to 5
{c}    a number at which code for sizes may change
{d}    a dimension
{s}    a float, constant or computed from sizes
{z}    a number of any kind, or a tensor without dimensions
{y}    a parameter of a program in training
{p}    a new input: indices, some of which may be out of range
{w}    a new input: probabilities, some of which may be invalid
====== ===========================================

A statement that does not run is drawn again, so a template need not fit every tensor.
"""

from __future__ import annotations

# Integers computed from sizes. INTEGERS adds those that tracing would capture as constants.
TRACED_INTEGERS = (
    "{n}",
    "{n} // {k}",
    "{n} - {c}",
    "{c} - {n}",
    "{n} % {k}",
    "{n} * {k} - {c}",
    "({n} + {k}) // {k}",
    "{n} // {k} - {k}",
    "{n} - {n} // {k} * {k}",
    "{n} * {n} // {c}",
    "-{n}",
    "{n} - 1",
    "{n} + {i}",
    "{i} // {k}",
    "{i} - {k}",
)
INTEGERS = (
    *TRACED_INTEGERS,
    "(-1) ** {n}",
    "int({n} > {c})",
    "int({n} == {c})",
    "abs({n} - {c})",
    "max({n}, {c})",
    "min({n}, {c})",
    "{f}.numel() % {k}",
    "int({n} ** 0.5)",
    "{n} & {k}",
    "{n} >> 1",
    "{i} if {n} > {c} else {k}",
)

SCALARS = ("0.5", "-1.5", "2.0", "float({i})", "{i} * 0.1", "1.0 / ({n} + 1)", "{n} ** 0.5 * 0.1", "float({n} > {c})")

# Integers computed from sizes, used as values, indices, paddings, exponents, dimensions and bounds of slices.
OF_SIZES = (
    "{f} * {i}",
    "{f} + {i} * 0.5",
    "{f} / ({i} * {i} + 0.5)",
    "{f} * float({i} > {c})",
    "{f} * ({i} // {c})",
    "{f} * 0.5 ** ({i} % 4)",
    "{f}[{i}]",
    "{f}[{i}:{j}]",
    "{f}[:{i}]",
    "{f}[{i}:]",
    "{f}[:, {i}:]",
    "{f}[..., :{i}]",
    "{f}[{i}:{i} + {k}]",
    "{f}[::{i} % 3 + 1]",
    "{f}.select({d}, {i})",
    "{f}.narrow({d}, {i}, {k})",
    "{f}.narrow({d}, 0, {i})",
    "F.pad({f}, [{i}, {j}])",
    "F.pad({f}, [0, 0, {i}, 0])",
    "F.pad({f}, [0, {k}, {i}, {j}], value=0.5)",
    "F.pad({f}, [{i} % 3, 0], mode='circular')",
    "F.pad({f}, [{i}, {k}], mode='reflect')",
    "F.pad({f}, [{i}, 0], mode='replicate')",
    "torch.roll({f}, {i}, {d})",
    "torch.full_like({f}, {i}) * {f}",
    "torch.where(torch.full_like({f}, {i}) > {c}, {f}, {g})",
    "torch.where({f} > {i} * 0.01, {f}, {g})",
    "torch.arange({i}) * 2",
    "torch.arange({i}, {j})",
    "torch.arange(0, {i}, {k})",
    "torch.arange({i}, 0, -{k})",
    "torch.arange({i}) < {j}",
    "torch.zeros(({i}, {k})) + {i}",
    "torch.full([{k}, {i}], 0.5) * {i}",
    "torch.ones({i}).sum() * {f}",
    "torch.eye({i})",
    "torch.linspace(0, {i}, {k})",
    "{f}.tril({i})",
    "{f}.triu({i})",
    "torch.diagonal({f}, {i}) * 2",
    "torch.diag_embed({f}, {i})",
    "torch.pow({f}, {i} % 4)",
    "torch.pow({i} % 3, {f})",
    "{f}.clamp(max=float({i}))",
    "{f}.clamp(-1.0, {i} * 0.1)",
    "{f}.masked_fill({f} > 0, float({i}))",
    "{f}.repeat({i} % 3 + 1, 1)",
    "{f}.repeat_interleave({k}, {d})",
    "{f}.expand({i} % 4 + 1, -1, -1)",
    "{f}.view({i}, -1)",
    "{f}.reshape(-1, {i})",
    "{f}.reshape({i}, -1)",
    "{f}.split({i}, {d})[0]",
    "{f}.split({i}, {d})[-1]",
    "{f}.chunk({k}, {d})[-1]",
    "{f}.unfold({d}, {k}, {i} % 3 + 1)",
    "{f}.unfold({d}, {i}, {k})",
    "{f}.flip({i} % 2)",
    "{f}.sum({i} % 2)",
    "torch.softmax({f}, {i} % 2)",
    "{f}.transpose(0, {i} % 2)",
    "{f}.unsqueeze({i} % 2)",
    "torch.cat([{f}, {g}], {i} % 2)",
    "torch.stack([{f}, {f} * 2], {i} % 2)",
    "torch.select_scatter({f}, {f}.select({d}, 0), {d}, {i})",
    "torch.slice_scatter({f}, {f}[:{k}], 0, {i}, {i} + {k})",
    "torch.index_select({f}, {d}, torch.arange({k}) + {i})",
    "{f}[torch.arange({k}) + {i}]",
    "F.avg_pool1d({f}, {i} % 3 + 1)",
    "F.max_pool1d({f}, {i} % 3 + 1)",
    "F.adaptive_avg_pool1d({f}, {i})",
    "F.interpolate({f}[None], size=[{i}])",
    "torch.cumsum({f}, {d}) / ({i} + {c})",
    "torch.fmod({f}, {i} + 0.5)",
    "torch.remainder({f}, {i} + 0.5)",
    "{q} // ({i} * 2 + 1)",
    "{q} % ({i} * 2 + 1)",
    "{q} * {i}",
    "torch.bitwise_and({q}, {i})",
    "torch.tensor({i}) + {f}",
    "torch.tensor([{i}, {j}]) * 2",
    "F.leaky_relu({f}, {i} * 0.01)",
    "F.layer_norm({f}, [{i}])",
    "F.layer_norm({f}, [{f}.size(-1)])",
    "{f}.mean({d}) * {i}",
    "{f}.var({d}, correction={i} % 2)",
    "torch.add({f}, {g}, alpha={i})",
    "torch.lerp({f}, {g}, {i} * 0.01)",
    "{f} * {s}",
    "{f} + {s}",
)

# Numbers inside and outside of the ranges of dtypes, and numbers that are not integers.
NUMBERS = (
    *("2", "-3", "257", "300", "2049", "70000", "2**33 + 5", "True", "0.3", "2.5", "-1.7", "1e6", "1e39"),
    *("float('nan')", "float('inf')", "-float('inf')"),
)
# Expressions of these numbers and tensors of any dtype.
OF_NUMBERS = (
    "{t} + {z}",
    "{t} - {z}",
    "{z} - {t}",
    "{t} * {z}",
    "{t} / {z}",
    "{z} / {t}",
    "{t} % {z}",
    "{t} // {z}",
    "torch.add({t}, {t}, alpha={z})",
    "torch.rsub({t}, {z}, alpha=2)",
    "torch.div({t}, {z}, rounding_mode='trunc')",
    "torch.fmod({t}, {z})",
    "{t} == {z}",
    "{t} < {z}",
    "{z} >= {t}",
    "torch.clamp({t}, {z}, None)",
    "torch.clamp({t}, {z}, 3)",
    "torch.clamp_max({t}, {z})",
    "torch.where({t} > 1, {t}, {z})",
    "torch.where({t} > 1, {z}, {f})",
    "{t}.masked_fill({t} > 1, {z})",
    "torch.full_like({t}, {z})",
    "torch.fill({t}, {z})",
    "torch.addcmul({t}, {t}, {t}, value={z})",
    "torch.addcdiv({f}, {f}, {f} + 9, value={z})",
    "torch.lerp({f}, {f} * 2, {z})",
    "{t} & {z}",
    "{t} ^ {z}",
    "{t} << {z}",
    "{t} >> {z}",
    "torch.threshold({t}, {z}, {z})",
    "F.hardshrink({f}, {z})",
    "F.leaky_relu({f}, {z})",
    "F.hardtanh({t}, -3, {z})",
    "F.pad({t}, [1, 1], value={z})",
    "torch.nan_to_num({f}, {z})",
    "torch.maximum({t}, torch.tensor({z}))",
    "{t} * torch.tensor({z})",
    "{t}.sum() * {z}",
    "{t}.to(torch.float32).mean() + {z}",
    "torch.logical_and({t}, torch.tensor({z}))",
    "{t} ** 2 + {z}",
)

# Expressions with trained parameters.
TRAINED = (
    "{f} * {y}",
    "{f} + {y}",
    "{f} @ {y}",
    "F.linear({f}, {y})",
    "torch.tanh({f} * {y})",
    "{f} * {y}.sum()",
    "F.layer_norm({f}, [{y}.size(-1)], {y}, None)",
    "torch.where({f} > 0, {f}, {y} * {f})",
    "F.prelu({f}, {y}[:1].flatten()[:1])",
    "{f}.softmax({d}) * {y}",
)

# Operators for which eager checks values. Some inputs have invalid values.
INDICES = (
    "integers(5, high=n if n > 20 else 2 * n + 1)",
    "integers(5, low=-n if n > 20 else -2 * n - 1, high=n)",
    "integers(n, high=4 if n > 20 else 6)",
    "integers(n, low=0 if n > 20 else -1, high=4)",
    "integers(high=n if n > 20 else 2 * n + 1)",
)
PROBABILITIES = ("between(0, 1 if n > 20 else 1.3, n, 4)", "between(0 if n > 20 else -0.3, 1, n, 4)")
CHECKED = (
    "{f}.index_select({d}, {p})",
    "{t}[{p}]",
    "{t}[:, {p}]",
    "torch.take({t}, {p})",
    "torch.gather({f}, 0, {p}[:, None])",
    "torch.gather({f}, 1, {p}[:, None])",
    "torch.scatter({f}, 1, {p}[:, None], 0.5)",
    "torch.scatter_add({f}, 0, {p}[:, None], {f})",
    "torch.index_add({f}, 0, {p}, {f}[:5])",
    "torch.index_copy({f}, 0, {p}, {f}[:5])",
    "torch.index_fill({f}, {d}, {p}, 0.5)",
    "torch.index_put({f}, [{p}], torch.tensor(0.5))",
    "F.embedding({p}, {f})",
    "F.embedding({p}, {f}, padding_idx=1)",
    "F.one_hot({p}, {n})",
    "F.one_hot({p}, 4)",
    "F.cross_entropy({f}, {p})",
    "F.cross_entropy({f}, {p}, ignore_index=-1)",
    "F.nll_loss(F.log_softmax({f}, 1), {p}, reduction='none')",
    "F.multi_margin_loss({f}, {p})",
    "F.binary_cross_entropy({w}, {w} * 0 + 0.5)",
    "F.binary_cross_entropy({w}, {w} * 0 + 0.5, reduction='none')",
    "torch.repeat_interleave({f}, {p}, 0)",
)

VIEWS = (
    "{t}.t()",
    "{t}.transpose(0, -1)",
    "{t}[1:]",
    "{t}[:, ::2]",
    "{t}[..., -1]",
    "{t}[None]",
    "{t}.view(-1)",
    "{t}.flatten()",
    "{t}.unsqueeze({d})",
    "{t}.select({d}, 0)",
    "{t}.diagonal()",
    "{t}.permute(1, 0)",
    "{t}.detach()",
    "{t}.contiguous()",
    "{t}.chunk(2, {d})[0]",
    "{t}.unbind({d})[0]",
    "{t}.squeeze()",
    "{t}.movedim(0, -1)",
    "{t}.expand_as({g})",
    "{t}.reshape(-1, {k})",
    "{t}.reshape({t}.size(-1), -1)",
)

WRITES = (
    "{f}.add_({g})",
    "{f}.mul_({s})",
    "{f}.add_({i})",
    "{f}[1:3].mul_(2)",
    "{f}[0].fill_({s})",
    "{f}[:, 0] += {s}",
    "{f}[:, ::2] = {g}[:, ::2]",
    "{f}.t().sub_(1)",
    "{f}.select({d}, {i}).zero_()",
    "{f}[{i}:] = 0.5",
    "{f}[{f} > 0.5] = -1.0",
    "{f}.view(-1)[::3].neg_()",
    "{f}.relu_()",
    "{f}.tanh_()",
    "{f}.copy_({g})",
    "{f}.clamp_(-1, 1)",
    "{f}.masked_fill_({f} > 0, 0.5)",
    "{f}.transpose(0, -1).copy_({g}.transpose(0, -1))",
    "{q}.add_(1)",
    "{q} += {i}",
    "{f} += {g}",
    "{f} *= {s}",
    "{f}.diagonal().fill_({s})",
    "{f}.index_fill_(0, torch.tensor([0, 1]), {s})",
    "{f}.zero_()",
    "{f}.fill_({s})",
    "{f}.narrow({d}, {i}, {k}).mul_(2)",
    "torch.add({f}, {g}, out={f})",
    "for element in [{f}, {g}]:\n    element.mul_(0.5)",
)

CONDITIONS_OF_SIZES = ("{n} > {c}", "{i} > {k}", "{n} % 2 == 0", "{n} == {c}", "{f}.size(0) == {g}.size(0)", "{i} < 0")
CONDITIONS_OF_DATA = ("bool({f}.sum() > 0)", "float({f}.mean()) < 0.1", "bool(({f} > 1.5).any())")

# {v} is the value that control flow changes, {a} and {b} are expressions, {u} is an expression of {v}.
CONTROL = (
    "if {condition}:\n    {v} = {a}\nelse:\n    {v} = {b}",
    "{v} = {a}\nif {condition}:\n    {v} = {u}",
    "{v} = {a}\nif {condition}:\n    {v}.mul_(2)",
    "{v} = {a}\nfor step in range({i} % 5):\n    {v} = {u} + step",
    "{v} = {a}\nfor step in range({k}):\n    if {condition}:\n        {v} = {u} * step\n    {v} = {v} + 1",
    "{v} = {a}\nfor step in range({k}):\n    {v} += {b} * step",
    "parts: List[Tensor] = []\nfor step in range({k}):\n    parts.append({a} * step)\n{v} = torch.stack(parts)",
    "parts: List[Tensor] = []\nfor step in range({i} % 4 + 1):\n    parts.append({a} + step)\n{v} = torch.cat(parts)",
    "{v} = {a}\ncount = {n}\nwhile count > {c}:\n    {v} = {u} * 0.5\n    count = count // 2",
)

# Expressions that compute the next value in a control flow.
STEPS = ("torch.tanh({v}) * 1.5", "{v} * 0.5 + {g}", "torch.sigmoid({v})", "{v}.flip(0)", "{v} - {v}.mean()")

# Expressions of one or two tensors. They become a group together with the statements around them.
COMMON = (
    "torch.tanh({f}) * 2",
    "{f} * {g}",
    "{f} + {g}",
    "torch.sigmoid({f} - {g})",
    "{f} @ {g}",
    "{f} @ {f}.transpose(-1, -2)",
    "torch.relu({f})",
    "{f}.softmax({d})",
    "{f}.sum({d})",
    "{f}.mean({d}, keepdim=True) + {f}",
    "{f}.amax({d})",
    "torch.exp(-{f} * {f})",
    "torch.cat([{f}, {g}], {d})",
    "torch.stack([{f}, {g}])",
    "({f} > 0.3)",
    "({f} * 4).to(torch.int64)",
    "{t}.to(torch.float32) * 0.5",
    "{t}.to(torch.float64) * 0.5",
    "{t}.argmax({d})",
    "{q} * 3 + 1",
    "torch.where({f} > 0, {f}, {g})",
)

# Numbers at which code for sizes may change: small ones, and numbers near the lengths of vectors and tiles.
TURNS = (2, 3, 5, 7, 8, 15, 16, 17, 20, 30, 31, 32, 33, 40, 41, 45, 48, 50, 60, 64)

# Shapes of inputs in terms of n and m.
SHAPES = (
    ("n", "4"),
    ("n",),
    ("4", "n"),
    ("n", "m"),
    ("2", "n", "4"),
    ("n", "n"),
    ("2", "4", "n"),
    ("n", "3", "5"),
    ("2", "4", "n", "6"),
    ("n", "4", "7", "6"),
    ("1", "2", "n", "m"),
    (),
)
