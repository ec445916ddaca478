from widemargin.data import load


def test_the_sample_is_balanced_and_real() -> None:
    for split, per_class in (("train", 10), ("test", 6)):
        data = load("cifar10-embedded", split)
        assert data.image_shape == (3, 32, 32)
        assert data.labels.bincount().tolist() == [per_class] * 10
        # Real photographs: neighboring pixels agree far better than distant ones.
        images = data.floats()
        neighbors = (images[..., 1:] - images[..., :-1]).abs().mean()
        distant = (images[..., 16:] - images[..., :16]).abs().mean()
        assert neighbors < distant / 2


def test_a_prefix_is_balanced() -> None:
    assert load("cifar10-embedded", "train", limit=20).labels.bincount().tolist() == [2] * 10
