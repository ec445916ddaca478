"""``python -m benchmarks``, in the repository's root: what a training step, a penalty and an evaluation cost here."""

from widemargin.cli.main import CommandLine, Verb, main
from widemargin.core.signals import install_handlers

BENCHMARKS = CommandLine(
    "python -m benchmarks",
    "What a training step, EMR, an evaluation and decoding cost on this machine.",
    {
        "step": Verb(
            "benchmarks.commands",
            "step",
            "Time a training step on synthetic images; set it against the machine's ceilings and a loop written by "
            "hand.",
        ),
        "paper": Verb(
            "benchmarks.commands",
            "paper",
            "The paper's table of step times: AT and TRADES, plain, +IGR, +HE, +EMR, as ratios to plain AT.",
        ),
        "emr-cost": Verb(
            "benchmarks.emr_cost",
            "emr_cost",
            "What each form of EMR costs on this machine's CPU, as ratios measured in one run.",
        ),
        "penalties": Verb(
            "benchmarks.penalties",
            "penalties",
            "What a penalty costs on timm's, Hugging Face's and our models, in plain steps, beside double backward by "
            "hand.",
        ),
        "distance": Verb(
            "benchmarks.distance",
            "distance",
            "How short distances are and what they cost: each attack alone and the methods of --distance.",
        ),
        "streaming": Verb(
            "benchmarks.streaming",
            "streaming",
            "Images a second of an epoch of streamed batches, and of a plain DataLoader over the same folder, in turn.",
        ),
        "autoattack": Verb(
            "benchmarks.autoattack",
            "autoattack",
            "AutoAttack through our evaluator against the bare backend, timed in turn, and how many verdicts differ.",
        ),
        "evaluator-overhead": Verb(
            "benchmarks.evaluator_overhead",
            "evaluator_overhead",
            "What the evaluator adds to the bare AutoAttack backend: the same attack, timed in turn.",
        ),
    },
)

if __name__ == "__main__":
    install_handlers()
    main(line=BENCHMARKS)
