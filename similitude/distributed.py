"""Layers on several processes: prototypes sharded over a mesh (tensor parallelism), and shared banks under FSDP2."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from . import functional as F
from .checks import check_loss, check_targets
from .form import check_choice
from .nn import FeatureBank, TverskyProjection
from .ops.cross_entropy import REDUCTIONS
from .ops.modes import autocasts, wide

__all__ = ["PrototypeParallel", "shard"]


class PrototypeParallel(ParallelStyle):
    """A style for ``parallelize_module`` that gives each process a share of a TverskyProjection's prototypes.

    The bank and α, β, θ stay whole, and so do inputs. Processes must build the same model and get the same inputs. The
    layer keeps its methods. ``cross_entropy`` is the loss over all prototypes: each process compares its inputs with
    its own share only, and exchanges a few numbers per input with the others, never similarities.

    Args:
        output_layouts: ``Replicate()`` for the whole similarities on each process (default), or ``Shard(-1)`` for the
            process's own share of them.
        use_local_output: Whether the output is a plain tensor; False for a DTensor, which torch's ``loss_parallel``
            takes.
        tied_to: The nn.Embedding whose weight the prototypes are. It is sharded too and stays tied; leave it out of the
            plan of ``parallelize_module``.
    """

    def __init__(
        self,
        *,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        tied_to: nn.Embedding | None = None,
    ):
        super().__init__()
        self.output_layouts = output_layouts or Replicate()
        self.use_local_output = use_local_output
        self.tied_to = tied_to

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, TverskyProjection) or isinstance(module, ShardedProjection):
            raise TypeError(f"PrototypeParallel takes a TverskyProjection; got {type(module).__name__}.")
        if device_mesh.ndim != 1:
            raise ValueError(f"PrototypeParallel takes a mesh of one axis, such as mesh['tp']; got {device_mesh}.")
        P, shares = module.out_features, device_mesh.size()
        if math.ceil(P / shares) * (shares - 1) >= P:
            raise ValueError(f"{P} prototypes leave some of {shares} processes without any; use a smaller mesh.")
        if module.starting_scale is not None:
            raise ValueError("PrototypeParallel takes no layer with a scale: multiply its output instead.")
        if self.tied_to is not None:
            if self.tied_to.weight is not module.prototypes:
                raise ValueError("tied_to must be the embedding whose weight the prototypes are; got another one.")
            style = RowwiseParallel(input_layouts=Replicate())
            style.src_data_rank = self.src_data_rank
            style._apply(self.tied_to, device_mesh)
            module.register_parameter("prototypes", nn.Module.get_parameter(self.tied_to, "weight"))
        elif not module.owns_prototypes:
            raise ValueError(
                "the prototypes are tied to a parameter that would stay whole: pass tied_to=, the embedding it is of."
            )
        else:
            module.prototypes = self._shard(module.prototypes, device_mesh)
        if module.bias is not None:
            module.bias = self._shard(module.bias, device_mesh)
        # As fully_shard does: parallelize_module ignores a new module that is returned.
        module.__class__ = ShardedProjection
        assert isinstance(module, ShardedProjection)
        module.mesh = device_mesh
        module.output_layouts, module.use_local_output = self.output_layouts, self.use_local_output
        return module

    def _shard(self, whole: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
        rows = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=self.src_data_rank)
        return nn.Parameter(rows, requires_grad=whole.requires_grad)


class ShardedProjection(TverskyProjection):
    """A TverskyProjection whose prototypes and bias are sharded over processes; made by PrototypeParallel."""

    mesh: DeviceMesh
    output_layouts: Placement
    use_local_output: bool

    def forward(self, x: Tensor) -> Tensor:
        own = self._own_similarities(x)
        # Shares differ in size if the number of processes does not divide P.
        shape = torch.Size((*own.shape[:-1], self.out_features))
        out = DTensor.from_local(
            own,
            self.mesh,
            [Shard(own.dim() - 1)],
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        ).redistribute(placements=[self.output_layouts])
        return out.to_local() if self.use_local_output else out

    def cross_entropy(
        self,
        x: Tensor,
        target: Tensor,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Tensor:
        """Loss over the prototypes of all processes, the same on each of them: ``[..., D]``, ``[...]`` -> ``[]``.

        Each process makes an N×P/processes table for its own share. The arguments are those of tversky_cross_entropy.
        """
        check_choice("reduction", reduction, REDUCTIONS)
        check_targets(x, target, self.prototypes, ignore_index)
        check_loss(self.bias, self.prototypes, label_smoothing, z_loss)
        logits = self._own_similarities(x)
        dtype = logits.dtype
        logits = logits.reshape(-1, logits.shape[-1]).to(wide(dtype))  # [N, own share of P]
        flat = target.flatten()
        kept = flat != ignore_index
        row = flat - self._first_row()
        own = kept & (row >= 0) & (row < logits.shape[1])
        right = torch.where(own, logits.gather(1, torch.where(own, row, 0).unsqueeze(1)).squeeze(1), 0)
        lse = logits.logsumexp(-1)
        highest = _reduced(lse.detach(), self.mesh, "max")
        sums = [(lse - highest).exp(), right, *([logits.sum(-1)] if label_smoothing else [])]
        exponentials, right, *total = _reduced(torch.stack(sums), self.mesh, "sum")
        lse = highest + exponentials.log()
        losses = lse - (1 - label_smoothing) * right + z_loss * lse.square()
        if label_smoothing:
            losses = losses - label_smoothing / self.out_features * total[0]
        losses = torch.where(kept, losses, 0)
        if reduction == "none":
            out = losses.reshape(target.shape)
        else:
            out = losses.sum() / kept.sum() if reduction == "mean" else losses.sum()
        # As without a mesh, autocast keeps losses in 32 bits.
        return out if autocasts(x) else out.to(dtype)

    def _own_similarities(self, x: Tensor) -> Tensor:
        """Similarities to this process's prototypes, ``[..., own share of P]``."""
        x = _everywhere(x, self.mesh)
        features, threshold = self._features(x)
        features, alpha, beta, theta = (_everywhere(tensor, self.mesh) for tensor in (features, *self.contrast()))
        threshold = None if threshold is None else _everywhere(threshold, self.mesh)
        own = F.tversky_projection(x, _own(self.prototypes), features, alpha, beta, theta, *self.form, threshold)
        return own if self.bias is None else own + _own(self.bias).to(own.dtype)

    def _first_row(self) -> int:
        rows = math.ceil(self.out_features / self.mesh.size())
        return rows * self.mesh.get_local_rank()


def shard(model: nn.Module, blocks: Iterable[nn.Module], **options: Any) -> nn.Module:
    """``model`` under FSDP2, with feature banks that several blocks share.

    Each block becomes a group of its own. A bank that groups share goes into the model's group, and so does all that is
    in no block. ``fully_shard`` alone fails if a bank is part of several blocks, or trains it wrongly.

    Args:
        model: The model; it is changed in place.
        blocks: Modules of the model, such as ``model.transformer.h``. They may share nothing but feature banks.
        **options: Those of ``fully_shard``.
    """
    blocks, parts = list(blocks), set(model.modules())
    for block in blocks:
        if block not in parts:
            raise ValueError(
                f"blocks must be modules of the model; got {type(block).__name__}, which is not one of it."
            )
    banks = _shared_banks(model, blocks)
    parameters = {parameter for bank in banks for parameter in bank.parameters()}
    for block in blocks:
        fully_shard(block, ignored_params=parameters, **options)
    # The model's group takes what lies outside of blocks; its forward gathers the banks before a block needs them.
    model.add_module("shared_banks", nn.ModuleList(banks))
    try:
        fully_shard(model, **options)
    finally:
        del model.shared_banks
    return model


def _shared_banks(model: nn.Module, blocks: list[nn.Module]) -> list[FeatureBank]:
    """Banks that several groups have; an error if they share anything else."""
    groups = [*(set(block.parameters()) for block in blocks), set(_outside(model, blocks))]
    uses = Counter(parameter for group in groups for parameter in group)
    banks = [m for m in model.modules() if isinstance(m, FeatureBank) and uses[m.weight] > 1]
    theirs = {parameter for bank in banks for parameter in bank.parameters()}
    for name, parameter in model.named_parameters():
        if uses[parameter] > 1 and parameter not in theirs:
            raise ValueError(
                f"{name} would be in several groups, as only a feature bank may; give blocks that do not share it."
            )
    return banks


def _outside(module: nn.Module, blocks: list[nn.Module]) -> Iterator[nn.Parameter]:
    """Parameters of modules that are in no block."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if child not in blocks:
            yield from _outside(child, blocks)


def _everywhere(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """``x``, equal on all processes, with a gradient that is the sum of theirs."""
    if isinstance(x, DTensor):
        x = x.redistribute(placements=[Replicate()])
    elif torch.is_grad_enabled():
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return x.to_local(grad_placements=[Partial()]) if isinstance(x, DTensor) else x


def _reduced(x: Tensor, mesh: DeviceMesh, how: str) -> Tensor:
    """The sum or maximum of the ``x`` of all processes, on each of them."""
    parts = DTensor.from_local(x, mesh, [Partial(how)], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def unsharded(x: Tensor) -> Tensor:
    """The whole of a parameter that may be sharded over processes, as a plain tensor on each of them."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def _own(x: Tensor) -> Tensor:
    assert isinstance(x, DTensor)
    return x.to_local()
