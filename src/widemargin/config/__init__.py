"""A run as frozen dataclasses."""

from widemargin.config.run import (
    AveragingConfig,
    AWPConfig,
    DataConfig,
    EMRConfig,
    EvaluationConfig,
    GradAlignConfig,
    IGRConfig,
    OptimizerConfig,
    RunConfig,
    StoppingConfig,
    WatchConfig,
    kinds,
)

__all__ = [
    "AWPConfig",
    "AveragingConfig",
    "DataConfig",
    "EMRConfig",
    "EvaluationConfig",
    "GradAlignConfig",
    "IGRConfig",
    "OptimizerConfig",
    "RunConfig",
    "StoppingConfig",
    "WatchConfig",
    "kinds",
]
