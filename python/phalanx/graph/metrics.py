"""Metrics over many batches, computed from fetched arrays.

>>> metric = Accuracy()
>>> metric.update(value=0.5, weight=2)
>>> metric.update(value=1.0, weight=6)
>>> metric.eval()
0.875
"""

from __future__ import annotations

from typing import Any

import numpy as np


class MetricBase:
    """The base class: ``update`` takes a batch, ``eval`` gives the result so far, ``reset`` begins again."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__
        self.reset()

    def reset(self) -> None:
        """Forgets all batches."""

    def get_config(self) -> dict[str, Any]:
        """The counts so far, by name."""
        counts = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        return {"name": self._name, "states": counts}

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch."""
        raise NotImplementedError

    def eval(self) -> Any:
        """The result so far."""
        raise NotImplementedError


def _nothing_yet(metric: MetricBase) -> ValueError:
    return ValueError(f"{metric._name}: no batch was added yet; call update first")


class CompositeMetric(MetricBase):
    """Several metrics of the same batches."""

    def __init__(self, name: str | None = None) -> None:
        self._metrics: list[MetricBase] = []
        super().__init__(name)

    def add_metric(self, metric: MetricBase) -> None:
        """Adds a metric."""
        if not isinstance(metric, MetricBase):
            raise TypeError(f"add_metric takes a metric, got {type(metric).__name__}")
        self._metrics.append(metric)

    def reset(self) -> None:
        """Forgets all batches."""
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch to each."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        """The results, in the order in which metrics were added."""
        return [metric.eval() for metric in self._metrics]


def _binary(preds: Any, labels: Any) -> tuple[Any, Any]:
    """Whether each sample was predicted, and is, of the class."""
    said, are = np.rint(np.asarray(preds, "float64")).ravel(), np.asarray(labels).ravel()
    if said.shape != are.shape:
        raise ValueError(f"{said.size} predictions and {are.size} labels do not belong together")
    return said == 1, are == 1


class Precision(MetricBase):
    """How many of the samples that were predicted to be of a class are of it."""

    def reset(self) -> None:
        """Forgets all batches."""
        self.tp = self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch of probabilities, which count above 0.5 as in Paddle, and labels 0 or 1."""
        said, are = _binary(preds, labels)
        self.tp += int((said & are).sum())
        self.fp += int((said & ~are).sum())

    def eval(self) -> float:
        """The result so far; 0 if nothing was predicted to be of the class."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(MetricBase):
    """How many of the samples of a class were predicted to be of it."""

    def reset(self) -> None:
        """Forgets all batches."""
        self.tp = self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch of probabilities, which count above 0.5 as in Paddle, and labels 0 or 1."""
        said, are = _binary(preds, labels)
        self.tp += int((said & are).sum())
        self.fn += int((~said & are).sum())

    def eval(self) -> float:
        """The result so far; 0 if no sample is of the class."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Accuracy(MetricBase):
    """The mean of accuracies, weighted by the sizes of their batches."""

    def reset(self) -> None:
        """Forgets all batches."""
        self.value = self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        """Adds what ``layers.accuracy`` gave for a batch, and how many samples that had.

        Of several devices, a value and a weight each, or values of equally many samples and the weight of all.
        """
        values, weights = np.asarray(value, "float64").ravel(), np.asarray(weight, "float64").ravel()
        if values.size == 0 or weights.size not in (1, values.size):
            raise ValueError(f"{values.size} accuracies and {weights.size} weights do not belong together")
        if not (weights >= 0).all():
            raise ValueError(f"the weight of a batch is {weight}; it cannot be negative, or NaN")
        each = weights if weights.size == values.size else np.full(values.size, weights[0] / values.size)
        self.value += float((values * each).sum())
        self.weight += float(each.sum())

    def eval(self) -> float:
        """The result so far."""
        if self.weight == 0:
            raise _nothing_yet(self)
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from how many were found, are there, and were found correctly."""

    def reset(self) -> None:
        """Forgets all batches."""
        self.num_infer_chunks = self.num_label_chunks = self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:  # type: ignore[override]
        """Adds the counts of a batch."""
        self.num_infer_chunks += int(np.sum(num_infer_chunks))
        self.num_label_chunks += int(np.sum(num_label_chunks))
        self.num_correct_chunks += int(np.sum(num_correct_chunks))

    def eval(self) -> tuple[float, float, float]:
        """Precision, recall and F1 so far."""
        right = self.num_correct_chunks
        precision = right / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = right / self.num_label_chunks if self.num_label_chunks else 0.0
        return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


class EditDistance(MetricBase):
    """The mean distance of sequences, and how many of them have any."""

    def __init__(self, name: str) -> None:
        super().__init__(name)

    def reset(self) -> None:
        """Forgets all batches."""
        self.total_distance, self.seq_num, self.instance_error = 0.0, 0, 0

    def update(self, distances: Any, seq_num: Any) -> None:
        """Adds what ``layers.edit_distance`` gave for a batch."""
        each = np.asarray(distances, "float64")
        self.total_distance += float(each.sum())
        self.seq_num += int(np.sum(seq_num))
        self.instance_error += int((each > 0).sum())

    def eval(self) -> tuple[float, float]:
        """The mean distance, and the part of sequences with any."""
        if self.seq_num == 0:
            raise _nothing_yet(self)
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """The area under the curve of true over false positives, from counts of ``num_thresholds`` steps of probability."""

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095) -> None:
        if curve != "ROC":
            raise ValueError(f"Auc: curve={curve!r} is not supported; only 'ROC' is")
        self._steps = int(num_thresholds)
        super().__init__(name)

    def reset(self) -> None:
        """Forgets all batches."""
        self._positive = np.zeros(self._steps + 1, "int64")
        self._negative = np.zeros(self._steps + 1, "int64")

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch of probabilities, ``[n]``, ``[n, 1]``, or ``[n, 2]`` whose second column counts."""
        given, are = np.asarray(preds, "float64"), np.asarray(labels).ravel()
        column = given[:, 1] if given.ndim == 2 and given.shape[1] == 2 else given.ravel()
        if column.shape != are.shape:
            raise ValueError(f"{column.size} predictions and {are.size} labels do not belong together")
        if column.size and not ((column >= 0) & (column <= 1)).all():
            raise ValueError("Auc takes probabilities from 0 to 1")
        places = (column * self._steps).astype("int64")
        np.add.at(self._positive, places[are == 1], 1)
        np.add.at(self._negative, places[are != 1], 1)

    def eval(self) -> float:
        """The result so far; 0 if all samples are of one class."""
        right = np.concatenate([[0], np.cumsum(self._positive[::-1])])
        wrong = np.concatenate([[0], np.cumsum(self._negative[::-1])])
        if right[-1] == 0 or wrong[-1] == 0:
            return 0.0
        area = float((np.diff(wrong) * (right[1:] + right[:-1])).sum()) / 2.0
        return area / float(right[-1]) / float(wrong[-1])


__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "EditDistance",
    "MetricBase",
    "Precision",
    "Recall",
]
