"""A run as frozen dataclasses."""

from widemargin.config.run import (
    AveragingConfig,
    DataConfig,
    EMRConfig,
    EvaluationConfig,
    IGRConfig,
    OptimizerConfig,
    RunConfig,
    StoppingConfig,
    WatchConfig,
    kinds,
)

__all__ = [
    "AveragingConfig",
    "DataConfig",
    "EMRConfig",
    "EvaluationConfig",
    "IGRConfig",
    "OptimizerConfig",
    "RunConfig",
    "StoppingConfig",
    "WatchConfig",
    "kinds",
]
