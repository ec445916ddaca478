import torch
from torch import nn

from widemargin.heads import LinearHead


def test_is_a_linear_layer_under_the_usual_keys() -> None:
    head = LinearHead(5, 3)
    plain = nn.Linear(5, 3)
    plain.load_state_dict(head.state_dict())
    features = torch.randn(4, 5)
    assert list(head.state_dict()) == ["weight", "bias"]
    assert torch.equal(head(features), plain(features))


def test_training_logits_are_the_logits_themselves() -> None:
    head = LinearHead(5, 3)
    features = torch.randn(4, 5)
    logits = head(features)
    assert head.training_logits(features, logits, torch.tensor([0, 1, 2, 0])) is logits
