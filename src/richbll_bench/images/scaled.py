"""A posterior as it is, and with all of its variances times the factor that validation labels choose."""

from richbll import RichBLL
from richbll_bench.images.evaluation import detection, of_probabilities
from richbll_bench.images.last_layer import chosen_factor, predicting
from richbll_bench.images.task import Task

SCORES = ("variance", "relative_variance", "entropy")


def measured(uq: RichBLL, task: Task) -> dict[str, float]:
    """Probabilities before and with the factor, the factor, and how well scores tell other images."""
    factor = chosen_factor(uq, task)
    predict = predicting(uq, task, factor)
    test, validation = predict("test"), predict("validation")
    labels = task.images("test").labels
    metrics = of_probabilities(test.log_probs, labels)
    metrics |= {"factor": factor, "variance": float(test.scores["variance"].mean()) / factor}
    chosen_by = of_probabilities(validation.log_probs, task.images("validation").labels)
    metrics |= {f"{name}_validation": value for name, value in chosen_by.items()}
    before = of_probabilities(predicting(uq, task)("test").log_probs, labels)
    metrics |= {f"{name}_before": value for name, value in before.items()}
    for name in task.outside:
        strange = predict(name).scores
        told = detection(test, name, {score: strange[score] for score in SCORES})
        metrics |= {key: value for key, value in told.items() if key.startswith("auroc")}
    return metrics
