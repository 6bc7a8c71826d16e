"""Logits in a padded and in a packed batch: in bfloat16 they differ by the jumps of Eq. 4, and by rounding."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from similitude import TverskyProjection
from similitude.models.gpt2 import VARIANTS, TverskyGPT2Config, TverskyGPT2LMHeadModel

SIZES = dict(n_embd=256, n_layer=3, n_head=4, vocab_size=1000, n_positions=64, bos_token_id=0, eos_token_id=0)
LENGTHS = (5, 17, 40)


@torch.no_grad()
def both_ways(model) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and logits of the same tokens, padded and packed: ``[2, N, D]``, ``[2, N, P]``."""
    rows = [torch.randint(1, 1000, (n,)) for n in LENGTHS]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = padded != 0
    packed = torch.cat(rows)[None]
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    one = model(padded, attention_mask=mask.long(), output_hidden_states=True)
    # transformers takes positions that start again for a packed batch where no cache is asked for.
    other = model(packed, position_ids=positions, output_hidden_states=True, use_cache=False)
    hidden = torch.stack([one.hidden_states[-1][mask], other.hidden_states[-1][0]])
    return hidden, torch.stack([one.logits[mask], other.logits[0]])


def tversky(variant: str, tied: bool, **options) -> TverskyGPT2LMHeadModel:
    config = TverskyGPT2Config(**SIZES, variant=variant, tie_word_embeddings=tied, num_features=512, **options)
    return TverskyGPT2LMHeadModel(config).eval()


every_model = pytest.mark.parametrize(
    ("variant", "tied"), [(v, t) for v in VARIANTS for t in (True, False)], ids=lambda value: str(value)
)


@every_model
def test_in_float32_padded_and_packed_batches_agree(variant, tied):
    _, logits = both_ways(tversky(variant, tied))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


def watched(model) -> dict[TverskyProjection, list]:
    """Filled with inputs and outputs of each projection as the model runs."""
    seen = {layer: [] for layer in model.modules() if isinstance(layer, TverskyProjection)}
    for layer, calls in seen.items():
        layer.register_forward_hook(lambda _, x, out, calls=calls: calls.append((x[0].double(), out.double())))
    return seen


def jumps(layer: TverskyProjection, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What f(B−A) of Eq. 4 moves similarities by from y to x.

    It counts a prototype's feature until the input has it, and then jumps by the feature's measure.
    """
    has, had = ((layer.features(objects) > 0).double() for objects in (x, y))
    return layer.beta * (has - had) @ layer.features(layer.prototypes).relu().T


@every_model
@torch.no_grad()
def test_in_bfloat16_they_differ_by_the_equations_own_jumps_and_by_rounding(variant, tied):
    model = tversky(variant, tied).bfloat16()
    seen = watched(model)
    both_ways(model)
    model.double()
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    largest = 0.0
    for layer, [padded, packed] in seen.items():
        x, out = (part[mask] for part in padded)
        y, other = (part[0] for part in packed)
        jump = jumps(layer, x, y)
        rest = (out - other - jump).abs().max()
        # Outputs of half precision are rounded by 0.008; the continuous terms pass on what inputs differ by.
        assert rest < 0.02 + (x - y).abs().max()
        largest = max(largest, jump.abs().max().item())
    assert largest > 0.05


@torch.no_grad()
def test_in_bfloat16_a_head_without_beta_differs_by_rounding_as_gpt2_does():
    model = tversky("head", True, beta=0.0, learnable=("alpha", "theta"))
    gpt2 = GPT2LMHeadModel(GPT2Config(**SIZES)).eval()
    for each in (model, gpt2):
        _, logits = both_ways(each.bfloat16())
        assert 0.002 < (logits[0] - logits[1]).abs().max() / logits.abs().max() < 0.02
