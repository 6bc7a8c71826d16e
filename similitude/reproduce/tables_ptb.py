"""The paper's tables of perplexity on the Penn Treebank, with ours beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .ptb import MODELS, RECIPES, Config
from .record import paper
from .results import mark, with_error


def compare(results: list[dict]) -> list:
    """The paper's tables, ours beside them by recipe, and all runs of the tuned recipe.

    A cell is the mean over seeds, its standard error and its difference from the paper's, of the settings with the best
    validation perplexity.
    """
    from rich.table import Table

    runs = {name: _by_settings(results, recipe) for name, recipe in RECIPES.items()}
    out = []
    for init, title in (("scratch", "from scratch"), ("finetuned", "from OpenAI's weights")):
        table = Table("model", "tied", title=f"test perplexity on the Penn Treebank, {title}")
        for heading in ("K", "parameters", "paper", "ours, paper's recipe", "ours, tuned"):
            table.add_column(heading, justify="right")
        rows = {(r["model"], r["tied_prototypes"]): r for r in paper("ptb_test_perplexity") if r["init"] == init}
        others = [(model, tied) for model in MODELS for tied in "YN"] if init == "scratch" else []
        for model, tied in dict.fromkeys([*rows, *others]):
            row, chosen = rows.get((model, tied)), []
            for groups in runs.values():
                mine = [g for g in groups if _is(g[0]["config"], model, init, tied == "Y")]
                chosen.append(min(mine, key=lambda g: _mean(g, "valid")) if mine else None)
            ours = next((g[0] for g in chosen if g), None)
            counts = int(row["params"]) if row else ours["result"]["parameters"] if ours else None
            features = row["num_features"] if row else str(ours["config"]["num_features"]) if ours else ""
            theirs = row["perplexity"] if row else ""
            cells = [_cell(g, "test", theirs) + _other_size(g, features) if g else "not run" for g in chosen]
            numbers = f"{counts / 1e6:.1f} M" if counts else "–", theirs or "–"
            table.add_row(_short(model), "yes" if tied == "Y" else "no", features or "–", *numbers, *cells)
        out.append(table)
    out += _validation(runs["paper"])
    if not runs["tuned"]:
        return out
    tuned = Table("model", "tied", title="the tuned recipe, by learning rate and K")
    for heading in ("K", "lr", "parameters", "validation", "test", "seeds"):
        tuned.add_column(heading, justify="right")
    for g in sorted(runs["tuned"], key=lambda g: (MODELS.index(g[0]["config"]["model"]), _mean(g, "valid"))):
        c, linear = g[0]["config"], g[0]["config"]["model"] == "baseline"
        valid, test = f"{_mean(g, 'valid'):.2f}{mark(g)}", _cell(g, "test")
        numbers = f"{g[0]['result']['parameters'] / 1e6:.1f} M", valid, test, str(len(g))
        features = "–" if linear else str(c["num_features"])
        tuned.add_row(_short(c["model"]), "yes" if c["tied"] else "no", features, f"{c['lr']:g}", *numbers)
    return [*out, tuned]


def _validation(groups: list[list[dict]]) -> list:
    """The rows of the paper's table on the validation part whose settings were run."""
    from rich.table import Table

    rows = paper("ptb_validation_perplexity")
    table = Table("model", "tied", title=f"validation perplexity, the paper's recipe; ours of its {len(rows)} settings")
    for heading in ("K", "reductions", "paper", "ours"):
        table.add_column(heading, justify="right" if heading != "reductions" else "left")
    for group in sorted(groups, key=lambda g: MODELS.index(g[0]["config"]["model"])):
        c = group[0]["config"]
        linear, names = c["model"] == "baseline", ("intersection", "difference")
        bank = {} if linear else {"num_features": str(c["num_features"])} | {name: c[name] for name in names}
        known = {"model": c["model"], "init": c["init"], "tied_prototypes": "Y" if c["tied"] else "N", **bank}
        row = next((r for r in rows if known.items() <= r.items()), None)
        if row and c["level"] == "set":
            what = ("–", "–") if linear else (bank["num_features"], " + ".join(c[name] for name in names))
            tied = "yes" if c["tied"] else "no"
            theirs = row["perplexity"]
            table.add_row(_short(c["model"]), tied, *what, theirs, _cell(group, "valid", theirs))
    return [table] if table.row_count else []


def _cell(group: list[dict], what: str, theirs: str = "") -> str:
    return with_error((r["result"][what] for r in group), theirs=theirs) + mark(group)


def _is(config: dict, *kind) -> bool:
    return tuple(config[name] for name in ("model", "init", "tied")) == kind


def _other_size(group: list[dict], features: str) -> str:
    """What is to be said of a result whose bank is not of the row's size."""
    c = group[0]["config"]
    return "" if c["model"] == "baseline" or str(c["num_features"]) == features else f" (K {c['num_features']})"


def _short(model: str) -> str:
    """Its name without what all but the baseline begin with, so that tables fit 80 columns."""
    return model.removeprefix("tversky-")


def _by_settings(results: list[dict], recipe: Config) -> list[list[dict]]:
    """Runs of a recipe, those that differ by seed alone together, one of each; the tuned one has any learning rate."""
    about = ["model", "init", "source", "tied", "num_features", "intersection", "difference", "level", "seed"]
    about += ["checkpoint_every", *(["lr"] if recipe is RECIPES["tuned"] else [])]
    groups: dict[Config, dict[int, dict]] = {}
    for r in results:
        config = Config(**r["config"])
        more = [] if (config.model, config.init) == ("tversky-head", "scratch") else ["presence"]
        more += ["source"] if config.init == "scratch" else []
        # A baseline has neither a bank nor α and β.
        more += ["bank_rate", "difference_rate", "leak"] if config.model == "baseline" else []
        if replace(config, **{name: getattr(recipe, name) for name in about + more}) == recipe:
            # How often a run was saved changes no result, nor does a bank that it lacks.
            bank = [] if config.model != "baseline" else ["num_features", "intersection", "difference", "level"]
            same = {name: getattr(recipe, name) for name in ["seed", "checkpoint_every", *more, *bank]}
            groups.setdefault(replace(config, **same), {})[config.seed] = r
    return [list(group.values()) for group in groups.values()]


def _mean(runs: list[dict], what: str) -> float:
    return float(np.mean([r["result"][what] for r in runs]))
