"""python -m benchmarks: parity first, then times and memory, ours beside plain torch, as CSV and pictures."""

import argparse
import gc
import sys
from pathlib import Path

import torch

import similitude.functional as F

from . import ratios, readme, tables
from .contenders import MIN_SUM, PRODUCT, SET, SHAPES, autocast, contenders, parity
from .measure import captured, forward_backward, inputs, machine, milliseconds, peak_gib

CASES = [
    *((name, PRODUCT) for name in ("mnist-head", "resnet-head", "gpt2-mlp", "gpt2-head")),
    ("gpt2-head", SET),
    ("mnist-head", MIN_SUM),
    ("resnet-head", MIN_SUM),
    ("min-sum", MIN_SUM),
]
# The sizes that a sweep goes through while the others stay.
BASE = {"cpu": (256, 256, 256, 256), "cuda": (2048, 768, 2048, 2048)}
SWEEP = {"cpu": [16, 64, 256, 1024, 4096], "cuda": [128, 512, 2048, 8192, 32768]}


def measure(size, options, device: str, repeats: int, **labels: str) -> list[dict]:
    """One row a contender. Memory comes first, while no CUDA graph keeps any; times are taken turn about."""
    found = contenders(size, options, device)
    both, forward, graphs, peaks = {}, {}, {}, {}
    for name, function, tensors in found:
        function = autocast(function, device)
        grad = torch.randn_like(function(*tensors).detach())
        both[name] = forward_backward(function, tensors, grad)
        forward[name] = lambda f=function, t=tensors: f(*t)
        peaks[name] = peak_gib(both[name], device, [*tensors, grad])
    slowest = max((milliseconds({"": run}, 1, device)[""].median for run in both.values()), default=1.0)
    few = max(3, min(repeats, int(2e3 / slowest)))
    times = {"forward": milliseconds(forward, few, device), "both": milliseconds(both, few, device)}
    if device == "cuda":
        # A CUDA graph cannot hold the choices by value of the torch path.
        for name in ("ours", "nn.Linear(D, P)", "nn.Linear(K, P aligned)"):
            graphs[name] = captured(both[name])
        times["graph"] = milliseconds(graphs, few, device)
    rows = []
    for name in both:
        row: dict = {**labels, **dict(zip("NDPK", size))}
        row |= {"options": " + ".join(map(str, options.values())), "contender": name}
        row["backward_ms"] = f"{times['both'][name].median - times['forward'][name].median:.4f}"
        for what in ("forward", "both", "graph"):
            taken = times.get(what, {}).get(name)
            for part in ("median", "p20", "p80"):
                key = f"{what}_ms" if part == "median" else f"{what}_{part}"
                row[key] = f"{getattr(taken, part):.4f}" if taken else ""
        row["peak_gib"] = f"{peaks[name]:.4f}"
        rows.append({**row, **tables.where(device)})
        print(
            f"{labels.get('shape', labels.get('sweep')):<12}{size!s:<26}{row['options']:<28}{name:<24}"
            f"{row['forward_ms']:>10}{row['both_ms']:>11}{row['graph_ms']:>10}{row['peak_gib']:>9}",
            flush=True,
        )
    del found, both, forward, graphs
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def profile() -> str:
    """Where the time of one forward and backward at gpt2-mlp and resnet-head goes: the GPU's, and the host's."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    lines = []
    for name in ("resnet-head", "gpt2-mlp"):
        N, D, P, K = SHAPES[name]
        grad = torch.randn(N, P, device="cuda", dtype=torch.bfloat16)
        run = forward_backward(autocast(F.tversky_projection, "cuda"), inputs(N, D, P, K, "cuda"), grad)
        times = milliseconds({"eager": run}, 30, "cuda")["eager"].median, milliseconds({"": captured(run)}, 30, "cuda")
        with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
            for _ in range(10):
                run()
            torch.cuda.synchronize()
        events = [e for e in p.events() or [] if e.device_type.name == "CUDA"]
        busy = sum(e.self_device_time_total for e in events) / 10
        lines.append(f"{name}: {times[0]:.3f} ms from the host, {times[1][''].median:.3f} ms as a CUDA graph;")
        lines.append(f"  {len(events) / 10:.0f} launches a run, whose work on the GPU is {busy / 1e3:.3f} ms.")
        table = p.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=50)
        lines += [line for line in table.splitlines() if line.strip()]
    return "\n".join([machine("cuda"), *lines, ""])


def rates(device: str) -> None:
    """Against what the machine can do: the share of a plain product's rate, and min-sum elements a second."""
    square = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    peak = 2 * 8192**3 / milliseconds({"": lambda: square @ square}, 20, device)[""].median / 1e9
    print(f"8192³ bfloat16 product: {peak:.0f} TFLOP/s")
    for name in ("gpt2-head", "gpt2-mlp"):
        N, D, P, K = SHAPES[name]
        tensors = inputs(N, D, P, K, device)
        grad = torch.randn(N, P, device=device, dtype=torch.bfloat16)
        run = forward_backward(autocast(F.tversky_projection, device), tensors, grad)
        ms = milliseconds({"": run}, 20, device)[""].median
        rate = (8 * N * P * K + 6 * P * D * K + 6 * N * D * K) / ms / 1e9
        print(f"{name}: {ms:.2f} ms, {rate:.0f} TFLOP/s, {rate / peak:.1%} of it")
    from similitude.ops.triton import minsum as triton_minsum

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b = torch.randn(2048, 2048, device=device).to(dtype), torch.randn(8192, 2048, device=device).to(dtype)
        g = torch.randn(2048, 8192, device=device)
        runs = {
            "forward": lambda a=a, b=b: triton_minsum.pair_sum(a, b, "min"),
            "gradients": lambda a=a, b=b, g=g: triton_minsum.pair_sum_gradients(g, a, b, "min"),
        }
        times = milliseconds(runs, 20, device)
        forward, gradients = times["forward"].median, times["gradients"].median
        rate = 2048 * 8192 * 2048 / forward / 1e9
        print(f"min-sum {dtype}: forward {rate:.1f}e12 elements/s, with both gradients {1 + gradients / forward:.2f} ×")


def loss(device: str) -> None:
    """The fused loss beside layer and F.cross_entropy."""
    N, D, P, K = (16384, 768, 50257, 4096) if device == "cuda" else (2048, 64, 20000, 256)
    tensors = inputs(N, D, P, K, device)
    target = torch.randint(P, (N,), device=device)
    one = torch.ones((), device=device)

    def plain(*t):
        return torch.nn.functional.cross_entropy(F.tversky_projection(*t), target)

    def fused(x, *t):
        return F.tversky_cross_entropy(x, target, *t)

    runs = {n: forward_backward(autocast(f, device), tensors, one) for n, f in (("plain", plain), ("fused", fused))}
    times = milliseconds(runs, 5, device)
    peaks = {name: peak_gib(run, device, tensors) for name, run in runs.items()}
    ours, other = times["fused"].median, times["plain"].median
    print(f"loss at {(N, D, P, K)}: {ours:.1f} ms against {other:.1f} ({ours / other:.2f} ×), ", end="")
    print(f"{peaks['fused']:.2f} GiB against {peaks['plain']:.2f} ({peaks['fused'] / peaks['plain']:.2f} ×)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--only", choices=("ratios", "shapes", "sweep", "rates", "loss", "profile"), help="one part of it"
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument(
        "--out", type=Path, default=tables.HERE / "results", help="folder of the CSV files and pictures"
    )
    parser.add_argument(
        "--readme",
        action="store_true",
        help="write the tables of README and docs from the CSV of the shapes and results/, and stop",
    )
    parser.add_argument(
        "--check", action="store_true", help="parity and the CPU's ratios alone; fails where one is a fifth too slow"
    )
    chosen = parser.parse_args()
    if chosen.check:
        chosen.device, chosen.only = "cpu", "ratios"
    device = chosen.device
    if chosen.readme:
        files = [chosen.out / f"shapes-{d}.csv" for d in ("cuda", "cpu")]
        found = next((f for f in files if f.exists()), None)
        if found is None:
            print(f"no CSV of the shapes in {chosen.out}; run python -m benchmarks first", file=sys.stderr)
            return 1
        of_cpu = chosen.out / "ratios-cpu.csv"
        readme.write(tables.read_csv(found), tables.read_csv(of_cpu) if of_cpu.exists() else [])
        return 0
    print(machine(device))
    wrong = parity(device)
    if wrong:
        print(f"parity fails, and no figure is shown: {wrong}", file=sys.stderr)
        return 1
    print("parity with the law: yes")
    held = True
    if device == "cpu" and chosen.only in (None, "ratios"):
        rows = ratios.check()
        held = all(row["held"] == "yes" for row in rows)
        tables.write_csv(rows, chosen.out / "ratios-cpu.csv")
    if device == "cuda" and chosen.only in (None, "rates"):
        rates(device)
    if device == "cuda" and chosen.only in (None, "profile"):
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "profile-cuda.txt").write_text(profile())
    if chosen.only in (None, "loss"):
        loss(device)
    if chosen.only in (None, "shapes"):
        print(f"{'':<66}{'':<24}{'forward':>10}{'+backward':>11}{'graph':>10}{'GiB':>9}")
        rows = [
            r for name, options in CASES for r in measure(SHAPES[name], options, device, chosen.repeats, shape=name)
        ]
        tables.write_csv(rows, chosen.out / f"shapes-{device}.csv")
    if chosen.only in (None, "sweep"):
        rows = []
        for position, size in ((0, "N"), (2, "P"), (3, "K")):
            for value in SWEEP[device]:
                base = list(BASE[device])
                base[position] = value
                rows += measure(tuple(base), PRODUCT, device, 10, sweep=size)
        tables.write_csv(rows, chosen.out / f"sweep-{device}.csv")
        tables.draw(rows, chosen.out / f"sweep-{device}.png")
    return 0 if held else 1


sys.exit(main())
