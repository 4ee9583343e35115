# SPDX-License-Identifier: Apache-2.0
"""Writes the model card of a saved run."""

from experiments.s1.plan import Plan
from experiments.s1.settings import S1Run, rank_seed
from experiments.s1.table import LABELS, Summary, figure

_ORDERS = {
    "sharded": "each rank reads its share of the shuffled records",
    "replicated": "each rank reads all records in the order of its own seed",
}


def model_card(plan: Plan, run: S1Run, *, summary: Summary) -> str:
    """README.md of a Hugging Face checkpoint folder: what was trained, how, and the
    measurements."""
    seeds = [rank_seed(setting=run.setting, seed=plan.seed, rank=r) for r in range(plan.workers)]
    origin = "fine-tuned" if plan.source.path else "initialized from scratch"
    facts = {
        "Base model": f"{plan.source.name}, {origin}",
        "Data": f"{plan.data_name}, {len(plan.examples)} records",
        "Setting": f"{run.setting}, {run.mode}: {_ORDERS[run.mode]}",
        "Seeds of ranks 0, 1, ...": ", ".join(map(str, seeds)),
        "Steps": f"{plan.steps} steps of {plan.workers} ranks x {plan.batch} records",
        "Optimizer": f"AdamW, constant learning rate {plan.lr:g}, all parameters",
        "Precision": plan.dtype,
        "Maximum length": f"{plan.max_length} tokens, loss on the response only",
    }
    measured = {LABELS[name]: figure(value) for name, value in summary._asdict().items()}
    return "\n".join(
        [
            _front_matter(plan, run),
            f"# {run.name}",
            "",
            "A run of the S1 experiment of presum: full fine-tuning by data-parallel ranks whose "
            "seeds agree or differ. It shows what the ranks disagree about. The model is not meant "
            "as an assistant.",
            "",
            *_table("Training", "value", facts),
            *_table("Measured", "mean over the steps", measured),
        ]
    )


def _front_matter(plan: Plan, run: S1Run) -> str:
    base = [f'base_model: "{plan.source.name}"'] if plan.source.path else []
    tags = ["presum", "full-fine-tuning", run.mode, run.setting]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        *base,
        "tags:",
        *(f"  - {tag}" for tag in tags),
        "---",
        "",
    ]
    return "\n".join(lines)


def _table(title: str, column: str, rows: dict[str, str]) -> list[str]:
    body = [f"| {name} | {value} |" for name, value in rows.items()]
    return [f"| {title} | {column} |", "|---|---|", *body, ""]
