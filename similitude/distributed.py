"""Layers on several processes: prototypes sharded over a mesh (tensor parallelism), and banks shared under FSDP2."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from . import functional as F
from .checks import check_choice, check_loss, check_targets
from .nn import FeatureBank, TverskyProjection
from .ops.cross_entropy import REDUCTIONS
from .ops.modes import autocasts, wide


class PrototypeParallel(ParallelStyle):
    """A style for ``parallelize_module`` by which each process has a share of a TverskyProjection's prototypes.

    The bank and α, β, θ stay whole, and so do inputs. Processes must build the same model and see the same inputs.
    The layer keeps its methods: ``cross_entropy`` is the loss over all prototypes, of which each process compares its
    inputs with its own share only, and adds up numbers, never similarities, with the others.

    output_layouts: ``Replicate()``, the whole similarities on each process, or ``Shard(-1)``, its own share of them.
    use_local_output: False for similarities as a DTensor, which torch's ``loss_parallel`` takes.
    tied_to: the nn.Embedding whose weight the prototypes are. It is sharded along, and stays tied; leave it out of the
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
        # As fully_shard does: parallelize_module has no use for another module.
        module.__class__ = ShardedProjection
        assert isinstance(module, ShardedProjection)
        module.mesh = device_mesh
        module.output_layouts, module.use_local_output = self.output_layouts, self.use_local_output
        return module

    def _shard(self, whole: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
        rows = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=self.src_data_rank)
        return nn.Parameter(rows, requires_grad=whole.requires_grad)


class ShardedProjection(TverskyProjection):
    """A TverskyProjection of whose prototypes, and bias, each process has a share; made by PrototypeParallel."""

    mesh: DeviceMesh
    output_layouts: Placement
    use_local_output: bool

    def forward(self, x: Tensor) -> Tensor:
        own = self._own_similarities(x)
        # Shares differ in size where P does not divide.
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

        A process makes the N×P/processes table of its own share. The arguments are those of tversky_cross_entropy.
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
        # As without a mesh: autocast keeps losses in 32 bits.
        return out if autocasts(x) else out.to(dtype)

    def _own_similarities(self, x: Tensor) -> Tensor:
        """Similarities to this process's prototypes, ``[..., own share of P]``."""
        x, features, *constants = (_everywhere(tensor, self.mesh) for tensor in (x, self.features(), *self.contrast()))
        own = F.tversky_projection(x, _own(self.prototypes), features, *constants, *self.form)
        return own if self.bias is None else own + _own(self.bias).to(own.dtype)

    def _first_row(self) -> int:
        rows = math.ceil(self.out_features / self.mesh.size())
        return rows * self.mesh.get_local_rank()


def shard(model: nn.Module, blocks: Iterable[nn.Module], **options) -> nn.Module:
    """``model`` under FSDP2, each of ``blocks`` in a group of its own and banks that groups share in the model's group.

    ``fully_shard`` alone fails where a bank is part of several blocks, or trains it wrongly. options: its own.
    """
    blocks, parts = list(blocks), set(model.modules())
    for block in blocks:
        if block not in parts:
            raise ValueError(
                f"blocks must be modules of the model; got {type(block).__name__}, which is not one of it."
            )
    groups = [*(set(block.parameters()) for block in blocks), set(_outside(model, blocks))]
    uses = Counter(parameter for group in groups for parameter in group)
    banks = [m for m in model.modules() if isinstance(m, FeatureBank) and uses[m.weight] > 1]
    weights = {bank.weight for bank in banks}
    for name, parameter in model.named_parameters():
        if uses[parameter] > 1 and parameter not in weights:
            raise ValueError(
                f"{name} would be in several groups, as only a feature bank may; give blocks that do not share it."
            )
    for block in blocks:
        fully_shard(block, ignored_params=weights, **options)
    # The model's group takes what it finds outside of blocks; its forward gathers banks before any block's needs them.
    model.add_module("shared_banks", nn.ModuleList(banks))
    try:
        fully_shard(model, **options)
    finally:
        del model.shared_banks
    return model


def _outside(module: nn.Module, blocks: list[nn.Module]) -> Iterator[nn.Parameter]:
    """Parameters that are reached without going through a block."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if child not in blocks:
            yield from _outside(child, blocks)


def _everywhere(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """``x``, which is the same on all processes; its gradient is the sum of theirs."""
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
