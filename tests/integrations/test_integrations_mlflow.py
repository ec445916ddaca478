"""MLflow's own client finds each point once; its store is a file of this test's."""

import pytest

from widemargin.config.toml import to_dict

mlflow = pytest.importorskip("mlflow", reason="mlflow is large; its extra is not in the dev environment")
from widemargin.integrations import make_tracker  # noqa: E402


@pytest.fixture
def client(tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    return mlflow.MlflowClient(uri)


def test_a_run_that_goes_on_appends_and_repeats_nothing(client, tiny, tmp_path, train_in_two_calls):
    out = tmp_path / "run"
    result = train_in_two_calls(out, lambda: [make_tracker("mlflow", out)])
    experiment = client.get_experiment_by_name("widemargin")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "tiny/st"
    assert run.info.status == "FINISHED"
    for name in ("loss", "emr", "validation_robust", "test_margin_mean"):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        assert points == [(line["epoch"], pytest.approx(line[name])) for line in result.metrics]
    config = to_dict(tiny())
    assert run.data.params["emr.weight"] == str(config["emr"]["weight"])
    assert run.data.params["watch.attack.eps"] == str(config["watch"]["attack"]["eps"])
    assert run.data.params["model.hidden"] == "[16]"
