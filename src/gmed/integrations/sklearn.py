"""A scikit-learn classifier that goes on learning: ``partial_fit`` with a memory that GMED edits."""

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


class GMEDClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network that learns from a stream of rows and replays, and edits, some it has stored.

    ``partial_fit`` takes rows as they come, once; classes that were never met before may appear in any call. ``fit``
    starts anew and passes over the rows several times. Features need no scaling: they are standardised by what has
    been met of the stream, and edits move stored rows in these units.

    A call that fails, or is interrupted by Ctrl-C, changes nothing. One thread may learn while others predict, save or
    copy: what is learned does not depend on it, and each prediction is that of one moment, before a step or a call or
    after it. ``classes_`` may have grown between two calls; where probabilities must go with it, take both from a copy
    (``copy.deepcopy(model)``).

    Parameters
    ----------
    memory : int
        How many examples are stored (reservoir sampling); 0 for none, which is fine-tuning.
    replay_size : int
        How many stored examples are replayed in each step.
    alpha : float
        Stride of the edit, for features in units of their standard deviation; 0 for no edit, which is plain replay.
    beta : float
        How much the edit holds down the current loss of what it edits.
    gamma : float
        Decay of the stride with every edit of an example; 1 is none.
    edit_steps : int
        Edits in a row.
    learning_rate : float
        Of plain SGD.
    updates_per_batch : int
        Updates in each step; replayed examples are drawn anew for each, and edited for the first.
    batch_size : int
        The most rows that one step learns from. More rows in a call are taken in several steps.
    hidden : int
        Width of the two hidden layers.
    model : torch.nn.Module or callable, optional
        A model of your own instead: a module from (rows, features) to (rows, classes), or a function
        ``model(features, classes)`` that makes one.
    standardise : bool
        Whether features are standardised.
    passes : int
        How often ``fit`` passes over the rows.
    shuffle : bool
        Whether ``fit`` shuffles the rows for each pass.
    random_state : int, RandomState instance or None
        Every random choice follows from it.

    Attributes
    ----------
    classes_ : ndarray
        The classes met so far, in order.
    n_features_in_ : int
        How many features a row has.
    feature_names_in_ : ndarray
        Their names, where rows came as a frame.
    rows_ : int
        How many rows it has learned from.

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
        standardise: bool = True,
        passes: int = 10,
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
        self.standardise = standardise
        self.passes = passes
        self.shuffle = shuffle
        self.random_state = random_state

    # ------------------------------------------------------------------ learning

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn from rows in their order.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Finite numbers; an array or a frame.
        y : array-like of shape (rows,)
            Words, whole numbers or truth values. LabelEncoder never met before are new classes.
        classes : array-like, optional
            Classes to tell apart from now on, if more than those of ``y`` are known; never needed.

        Returns
        -------
        GMEDClassifier
            Itself. A call that fails has changed nothing.
        """
        with self._lock:
            if self.__sklearn_is_fitted__():
                features, labels = self._validated(X, y, reset=False)
                self._check_unchanged()
                self._classifier.learn(features, labels, None if classes is None else np.asarray(classes))
            else:
                begun = self._blank()
                features, labels = begun._validated(X, y, reset=True)
                begun._classifier = begun._new(features.shape[1])
                begun._classifier.learn(features, labels, None if classes is None else np.asarray(classes))
                self.__dict__ = begun.__dict__  # all of it at once
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything and learn from rows that are all there at once, in several passes.

        Parameters
        ----------
        X, y
            As in :meth:`partial_fit`.

        Returns
        -------
        GMEDClassifier
            Itself. A call that fails has changed nothing.
        """
        with self._lock:
            fitted = self._blank()
            features, labels = fitted._validated(X, y, reset=True)
            fitted._classifier = fitted._new(features.shape[1])
            fitted._classifier.fit(features, labels, check_int("passes", self.passes), bool(self.shuffle))
            self.__dict__ = fitted.__dict__  # all of it at once
        return self

    def remove_examples(
        self,
        *,
        row: int | Sequence[int] | None = None,
        label: Any = None,
        where: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[np.bool_]] | None = None,
    ) -> int:
        """Remove stored rows on request, by number, by class or by what ``where(X, y)`` says; how many went.

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
        """Whether these are sound rows without doubt; to ask scikit-learn takes as long as a step."""
        return (
            type(X) is np.ndarray
            and X.dtype in (np.float64, np.float32)
            and X.ndim == 2
            and len(X) > 0
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in self.__dict__
            and bool(np.isfinite(X).all())
        )

    def _new(self, features: int) -> OnlineClassifier:
        settings, state = self._settings(), self.random_state
        chance = isinstance(state, np.random.RandomState) or state is None
        seed = check_random_state(state).randint(2**31) if chance else check_int("random_state", state, minimum=0)
        classifier = OnlineClassifier(settings, features, int(seed))
        classifier.feature_names = _names(getattr(self, "feature_names_in_", None))
        return classifier

    def _settings(self) -> ClassifierConfig:
        return ClassifierConfig(**{field.name: getattr(self, field.name) for field in fields(ClassifierConfig)})

    def _check_unchanged(self) -> None:
        for name, learned in vars(self._classifier.settings).items():
            now = getattr(self, name)
            if now is not learned and now != learned:
                raise UsageError(f"{name} was changed after learning had begun; put it back, or begin anew with fit")

    def _blank(self) -> Self:
        """One with the same parameters that has learned nothing; it shares the lock."""
        blank = object.__new__(type(self))
        learned = ("_classifier", "n_features_in_", "feature_names_in_")
        blank.__dict__ = {name: value for name, value in self.__dict__.items() if name not in learned}
        return blank

    def _at_this_moment(self) -> Self:
        """What it is now, whatever another thread makes of it."""
        seen = object.__new__(type(self))
        seen.__dict__ = self.__dict__  # which is replaced as a whole
        return seen

    @property
    def _lock(self) -> threading.RLock:
        """What is held while it changes."""
        lock: threading.RLock = self.__dict__.setdefault("_own_lock", threading.RLock())
        return lock

    # ------------------------------------------------------------------ predicting

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of each row."""
        classes, scores = self._classes_and_scores(X)
        found: NDArray[Any] = classes[scores.argmax(1)]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class, in the order of ``classes_``, for each row."""
        found: NDArray[np.float64] = softmax(self._classes_and_scores(X)[1].astype(np.float64), axis=1)
        return found

    def _classes_and_scores(self, X: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float32]]:
        check_is_fitted(self)
        now = self._at_this_moment()
        if now._is_clean_array(X):
            return now._classifier.classes_and_scores(X.astype(np.float64, copy=False))
        return now._classifier.classes_and_scores(validate_data(now, X, reset=False, dtype=np.float64))

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes met so far, in order."""
        return self._begun().labels.classes

    @property
    def rows_(self) -> int:
        """How many rows it has learned from."""
        return self._begun().rows

    def _begun(self) -> OnlineClassifier:
        if not self.__sklearn_is_fitted__():
            raise AttributeError("this estimator has learned nothing yet; call fit or partial_fit first")
        return self._classifier

    def __sklearn_is_fitted__(self) -> bool:
        return "_classifier" in self.__dict__

    # ------------------------------------------------------------------ saving

    def save(self, path: str | Path) -> None:
        """Write the estimator to one file (safetensors), whole or not at all; :meth:`load` reads it.

        A model of your own is not in the file but for its parameters: give it to :meth:`load` again.
        """
        check_is_fitted(self)
        now = self._at_this_moment()
        names = getattr(now, "feature_names_in_", None)
        beyond = {"passes": now.passes, "shuffle": now.shuffle, "random_state": now._seed_given()}
        known = {} if names is None else {"feature_names": json.dumps(names.tolist())}
        now._classifier.save(path, parameters=json.dumps(beyond, default=lambda number: number.item()), **known)

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> Self:
        """The estimator that was saved in a file. Reading it runs no code.

        Parameters
        ----------
        path
            The file.
        model
            The estimator's ``model``, if it was one of your own.
        """
        classifier, texts = OnlineClassifier.load(path, model)
        settings = {field.name: getattr(classifier.settings, field.name) for field in fields(ClassifierConfig)}
        try:
            estimator = cls(**settings, **json.loads(texts.get("parameters", '{"random_state": 0}')))
            names = json.loads(texts.get("feature_names", "null"))
            if names is not None and (
                not isinstance(names, list)
                or len(names) != classifier.inputs
                or not all(isinstance(n, str) for n in names)
            ):
                raise ValueError("the names of features")
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: what it says of the estimator is damaged ({error})") from None
        estimator.n_features_in_ = classifier.inputs
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
            classifier.feature_names = names
        estimator._classifier = classifier
        return estimator

    def _seed_given(self) -> int | None:
        """The random state where it is a number; a generator has given its numbers away."""
        state = self.random_state
        return None if state is None or isinstance(state, np.random.RandomState) else int(state)

    def __getstate__(self) -> dict[str, Any]:
        held: dict[str, Any] = dict(super().__getstate__())
        held.pop("_own_lock", None)
        if "_classifier" in held:
            held["_classifier"] = held["_classifier"].state()
        return held

    def __setstate__(self, held: dict[str, Any]) -> None:
        held = dict(held)
        if "_classifier" in held:
            tensors, texts = held["_classifier"]
            held["_classifier"] = OnlineClassifier.from_state(tensors, texts, held["model"])
            held["_classifier"].feature_names = _names(held.get("feature_names_in_"))
        super().__setstate__(held)


def _is_clean_labels(y: Any) -> TypeGuard[NDArray[Any]]:
    return type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biuU"


def _names(columns: NDArray[Any] | None) -> list[str] | None:
    return None if columns is None else [str(name) for name in columns.tolist()]
