"""How drawn examples are replayed."""

from gmed.replay.augmentation import Augmentation

__all__ = ["Augmentation"]
