"""A scikit-learn classifier that learns incrementally: ``partial_fit`` with a memory that GMED edits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from gmed.deprecated import old_attributes, old_parameters
from gmed.errors import UsageError, check_int
from gmed.online import ClassifierConfig, OnlineClassifier
from gmed.online.config import Model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise UsageError("the estimator needs scikit-learn 1.6 or newer: pip install 'gmed[sklearn]'") from None

__all__ = ["GMEDClassifier"]

SAVED_NAMES = {"passes": "n_epochs", "standardise": "standardize"}
"""Current names of parameters, by their names in old saved files and pickles."""


@old_attributes(rows_="n_samples_seen_", standardise="standardize", passes="n_epochs")
class GMEDClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network that learns from a stream of rows, and replays and edits rows it has stored.

    ``partial_fit`` learns from each row once, in a stream; new classes may appear in any call. ``fit`` starts over and
    makes several passes over the rows. Features need no scaling: they are standardized with running statistics of the
    stream, and edits move stored rows in standardized units.

    A call that fails, or is interrupted by Ctrl-C, changes nothing. One thread may learn while others predict, save or
    copy: this does not affect what is learned, and each prediction uses one consistent state, before or after a step or
    a call. ``classes_`` may grow between two calls; to get probabilities that agree with it, take both from a copy
    (``copy.deepcopy(model)``).

    Parameters
    ----------
    memory : int
        Number of stored examples (reservoir sampling); 0 for none, which is fine-tuning.
    replay_size : int
        Number of stored examples that are replayed in each step.
    alpha : float
        Step size of the edit, in standard deviations of the features; 0 for no edit, which is plain replay.
    beta : float
        Weight of the edit's penalty on the current loss of the edited examples.
    gamma : float
        Decay factor of the step size with every edit of an example; 1 for no decay.
    edit_steps : int
        Number of gradient steps of an edit.
    learning_rate : float
        Learning rate of plain SGD.
    updates_per_batch : int
        Updates in each step; each draws new replayed examples, and the first one edits them.
    batch_size : int
        Maximum number of rows of a step; more rows in a call are learned in several steps.
    hidden : int
        Width of the two hidden layers.
    model : torch.nn.Module or callable, optional
        A custom model instead: a module from (rows, features) to (rows, classes), or a function
        ``model(features, classes)`` that builds one.
    standardize : bool
        Whether features are standardized.
    n_epochs : int
        Number of passes that ``fit`` makes over the rows.
    shuffle : bool
        Whether ``fit`` shuffles the rows for each pass.
    random_state : int, RandomState instance or None
        Seed of all random choices.

    Attributes
    ----------
    classes_ : ndarray
        The classes seen so far, sorted.
    n_features_in_ : int
        Number of features of a row.
    feature_names_in_ : ndarray
        Their names, if rows came as a data frame.
    n_samples_seen_ : int
        Number of rows it has learned from.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> X_test, y_test, X, y = X[::5], y[::5], X[1::5], y[1::5]
    >>> model = GMEDClassifier(random_state=0)
    >>> for digit in range(10):  # one class after the other
    ...     _ = model.partial_fit(X[y == digit], y[y == digit])
    >>> model.classes_.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    References
    ----------
    Jin, Sadhu, Du, Ren, "Gradient-based editing of memory examples for online task-free continual learning",
    NeurIPS 2021.
    """

    _classifier: OnlineClassifier

    @old_parameters(standardise="standardize", passes="n_epochs")
    def __init__(
        self,
        *,
        memory: int = 1000,
        replay_size: int = 10,
        alpha: float = 1.0,
        beta: float = 0.01,
        gamma: float = 1.0,
        edit_steps: int = 1,
        learning_rate: float = 0.1,
        updates_per_batch: int = 3,
        batch_size: int = 10,
        hidden: int = 64,
        model: Model | None = None,
        standardize: bool = True,
        n_epochs: int = 10,
        shuffle: bool = True,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.memory = memory
        self.replay_size = replay_size
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.edit_steps = edit_steps
        self.learning_rate = learning_rate
        self.updates_per_batch = updates_per_batch
        self.batch_size = batch_size
        self.hidden = hidden
        self.model = model
        self.standardize = standardize
        self.n_epochs = n_epochs
        self.shuffle = shuffle
        self.random_state = random_state

    # ------------------------------------------------------------------ learning

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn from rows in their order.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Finite numbers; an array or a data frame.
        y : array-like of shape (rows,)
            Strings, integers or booleans. Labels that were not seen before become new classes.
        classes : array-like, optional
            Further classes, besides those of ``y``; never required.

        Returns
        -------
        GMEDClassifier
            The estimator itself. A call that fails changes nothing.
        """
        with self._lock:
            if self.__sklearn_is_fitted__():
                fitted, (features, labels) = self, self._validated(X, y, reset=False)
                self._check_unchanged()
            else:
                fitted, features, labels = self._start_over(X, y)
            fitted._classifier.learn(features, labels, None if classes is None else np.asarray(classes))
            self.__dict__ = fitted.__dict__  # atomic
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Discard everything learned and learn from a complete data set, in several passes.

        Parameters
        ----------
        X, y
            As in :meth:`partial_fit`.

        Returns
        -------
        GMEDClassifier
            The estimator itself. A call that fails changes nothing.
        """
        with self._lock:
            fitted, features, labels = self._start_over(X, y)
            fitted._classifier.fit(features, labels, check_int("n_epochs", self.n_epochs), bool(self.shuffle))
            self.__dict__ = fitted.__dict__  # atomic
        return self

    def _start_over(self, X: ArrayLike, y: ArrayLike) -> tuple[Self, NDArray[np.float64], NDArray[Any]]:
        """Return an untrained copy with the same parameters and lock, and the validated rows and labels."""
        new = object.__new__(type(self))
        learned = ("_classifier", "n_features_in_", "feature_names_in_")
        new.__dict__ = {name: value for name, value in self.__dict__.items() if name not in learned}
        features, labels = new._validated(X, y, reset=True)
        new._classifier = new._make_classifier(features.shape[1])
        return new, features, labels

    def remove_examples(
        self,
        *,
        row: int | Sequence[int] | None = None,
        label: Any = None,
        where: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[np.bool_]] | None = None,
    ) -> int:
        """Remove stored rows by number, by class or by a mask ``where(X, y)``, and return how many were removed.

        Parameters
        ----------
        row, label, where
            As in :meth:`gmed.online.OnlineClassifier.remove_examples`.
        """
        check_is_fitted(self)
        with self._lock:
            return self._classifier.remove_examples(row=row, label=label, where=where)

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[NDArray[np.float64], NDArray[Any]]:
        if not reset and self._is_clean_array(X) and _is_clean_labels(y) and len(X) == len(y):
            return X.astype(np.float64, copy=False), y
        features, labels = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(labels)
        return features, labels

    def _is_clean_array(self, X: Any) -> TypeGuard[NDArray[np.floating[Any]]]:
        """Return whether these are obviously valid rows; scikit-learn's validation takes as long as a step."""
        return (
            type(X) is np.ndarray
            and X.dtype in (np.float64, np.float32)
            and X.ndim == 2
            and len(X) > 0
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in self.__dict__
            and bool(np.isfinite(X).all())
        )

    def _make_classifier(self, features: int) -> OnlineClassifier:
        settings, state = self._settings(), self.random_state
        is_random = isinstance(state, np.random.RandomState) or state is None
        seed = check_random_state(state).randint(2**31) if is_random else check_int("random_state", state, minimum=0)
        classifier = OnlineClassifier(settings, features, int(seed))
        classifier.feature_names = _names(getattr(self, "feature_names_in_", None))
        return classifier

    def _settings(self) -> ClassifierConfig:
        return ClassifierConfig(**{field.name: getattr(self, field.name) for field in fields(ClassifierConfig)})

    def _check_unchanged(self) -> None:
        for name, original in vars(self._classifier.settings).items():
            current = getattr(self, name)
            if current is not original and current != original:
                raise UsageError(f"{name} was changed after the first partial_fit; restore it, or start over with fit")

    def _snapshot(self) -> Self:
        """Return a view of the current state that other threads do not replace."""
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__  # fit replaces it as a whole
        return view

    @property
    def _lock(self) -> threading.RLock:
        """The lock of all calls that change the estimator."""
        lock: threading.RLock = self.__dict__.setdefault("_own_lock", threading.RLock())
        return lock

    # ------------------------------------------------------------------ predicting

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the predicted class of each row."""
        classes, scores = self._classes_and_scores(X)
        predictions: NDArray[Any] = classes[scores.argmax(1)]
        return predictions

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class, in the order of ``classes_``, for each row."""
        probabilities: NDArray[np.float64] = softmax(self._classes_and_scores(X)[1].astype(np.float64), axis=1)
        return probabilities

    def _classes_and_scores(self, X: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float32]]:
        check_is_fitted(self)
        snapshot = self._snapshot()
        if snapshot._is_clean_array(X):
            return snapshot._classifier.classes_and_scores(X.astype(np.float64, copy=False))
        return snapshot._classifier.classes_and_scores(validate_data(snapshot, X, reset=False, dtype=np.float64))

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes seen so far, sorted."""
        return self._fitted().labels.classes

    @property
    def n_samples_seen_(self) -> int:
        """Number of rows it has learned from."""
        return self._fitted().rows

    def _fitted(self) -> OnlineClassifier:
        if not self.__sklearn_is_fitted__():
            raise AttributeError("this estimator is not fitted yet; call fit or partial_fit first")
        return self._classifier

    def __sklearn_is_fitted__(self) -> bool:
        return "_classifier" in self.__dict__

    # ------------------------------------------------------------------ saving

    def save(self, path: str | Path) -> None:
        """Write the estimator to a safetensors file atomically; :meth:`load` reads it.

        Of a custom model the file contains only the parameters: pass the model to :meth:`load` again.
        """
        check_is_fitted(self)
        snapshot = self._snapshot()
        seed = snapshot._integer_seed()
        parameters = {"passes": snapshot.n_epochs, "shuffle": snapshot.shuffle, "random_state": seed}
        text = json.dumps(parameters, default=lambda number: number.item())
        snapshot._classifier.save(path, parameters=text)

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> Self:
        """Load a saved estimator; this runs no code from the file.

        Parameters
        ----------
        path
            The file that :meth:`save` wrote.
        model
            The estimator's ``model``, if it was a custom one.
        """
        classifier, texts = OnlineClassifier.load(path, model)
        try:
            parameters = json.loads(texts.get("parameters", '{"random_state": 0}'))
            current = {SAVED_NAMES.get(name, name): value for name, value in parameters.items()}
            estimator = cls(**vars(classifier.settings), **current)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: the saved estimator parameters are damaged ({error})") from None
        estimator.n_features_in_ = classifier.inputs
        if classifier.feature_names is not None:
            estimator.feature_names_in_ = np.array(classifier.feature_names, dtype=object)
        estimator._classifier = classifier
        return estimator

    def _integer_seed(self) -> int | None:
        """Return the random state if it is an integer; the state of a generator is not saved."""
        state = self.random_state
        return None if state is None or isinstance(state, np.random.RandomState) else int(state)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_own_lock", None)
        if "_classifier" in state:
            state["_classifier"] = state["_classifier"].state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {SAVED_NAMES.get(name, name): value for name, value in state.items()}
        if "_classifier" in state:
            tensors, texts = state["_classifier"]
            state["_classifier"] = OnlineClassifier.from_state(tensors, texts, state["model"])
            state["_classifier"].feature_names = _names(state.get("feature_names_in_"))
        super().__setstate__(state)


def _is_clean_labels(y: Any) -> TypeGuard[NDArray[Any]]:
    return type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biuU"


def _names(columns: NDArray[Any] | None) -> list[str] | None:
    return None if columns is None else [str(name) for name in columns.tolist()]
